"""Formats of images that neither training nor `convert` reads, by their first bytes: what is in one is named, not lost.

Signatures: ISO/IEC 23008-12 (HEIF's brands; AVIF has its own), 15444-1 (JPEG 2000), 18181-2 (JPEG XL), 29199-2
(JPEG XR); Adobe's Photoshop File Formats; the Netpbm manual; DICOM PS3.10, 7.1.
"""

import re

_STARTS = {
    b"\0\0\0\x0cjP  ": "JPEG 2000", b"\xff\x4f\xff\x51": "JPEG 2000",
    b"\0\0\0\x0cJXL ": "JPEG XL", b"\xff\x0a": "JPEG XL",
    b"II\xbc\x01": "JPEG XR", b"8BPS": "PSD", b"v/1\x01": "OpenEXR", b"qoif": "QOI", b"DDS ": "DDS",
}  # fmt: skip
_BRANDS = {
    b"avif": "AVIF", b"avis": "AVIF",
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"), "HEIC"),
}  # fmt: skip
_PNM = re.compile(rb"P[1-7][ \t\r\n]")
_DICOM = slice(128, 132)


def other_format(content: bytes | memoryview) -> str:
    """Return the name of the format that an image has which is not read; empty for all else."""
    start = bytes(content[: _DICOM.stop])
    if start[4:8] == b"ftyp":
        return _BRANDS.get(start[8:12], "")
    if start[_DICOM] == b"DICM":
        return "DICOM"
    if _PNM.match(start):
        return "PNM"
    return next((name for begin, name in _STARTS.items() if start.startswith(begin)), "")
