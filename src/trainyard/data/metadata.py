"""Images without what their pixels do not depend on: texts, colour profiles, EXIF, animations, transparency.

Pillow refuses sound images for it (a large text in a PNG, a profile that is cut short in a JPEG), libpng unpacks any
number of texts, and no decoder needs it.
"""

import struct
from collections.abc import Iterator

_SIGNATURE = 8  # bytes of a PNG before its first chunk
_CHUNK = struct.Struct(">I4s")
_FRAME = struct.Struct(">BHHB")
_ANCILLARY = 0x20  # the bit of a chunk's first letter that is set where decoders need not know the chunk
_TURNED = b"eXIf"  # kept for the page about a dataset, which says what is turned
_BITS = 24  # where a PNG says how many bits its samples have


def bare_png(content: bytes | memoryview) -> bytes | memoryview:
    """Return a PNG without ancillary chunks but EXIF; its own bytes where it has none.

    From a broken chunk on, all stays: decoders shall find it.
    """
    chunks = list(_chunks(content))
    kept = [(start, stop) for kind, start, stop in chunks if not kind[0] & _ANCILLARY or kind == _TURNED]
    if len(kept) == len(chunks):
        return content
    rest = content[chunks[-1][2] :]
    return b"".join([content[:_SIGNATURE], *(content[start:stop] for start, stop in kept), rest])


def png_says(content: bytes | memoryview) -> tuple[int, bool]:
    """Return the bits of a PNG's samples, and whether a chunk makes some of its colours transparent."""
    return content[_BITS], any(kind == b"tRNS" for kind, _, _ in _chunks(content))


def bare_jpeg(content: bytes | memoryview) -> bytes:
    """Return a JPEG without comments and application segments, but for two that tell libjpeg what its colours are."""
    kept, end = [content[:2]], 2
    for marker, start, end in _segments(content):
        data = bytes(content[start + 4 : end])
        colours = (marker == 0xE0 and data[:5] == b"JFIF\0" and len(data) >= 14) or (
            marker == 0xEE and data[:5] == b"Adobe" and len(data) >= 12
        )
        if colours or not (0xE0 <= marker <= 0xEF or marker == 0xFE):
            kept.append(content[start:end])
    return b"".join([*kept, content[end:]])


def jpeg_frame(content: bytes | memoryview) -> tuple[int, int, int, int, int] | None:
    """Return a JPEG's frame: its marker, bits of a sample, height, width, colours; None where there is none to read."""
    for marker, start, end in _segments(content):
        if marker & 0xF0 == 0xC0 and marker not in (0xC4, 0xC8, 0xCC):  # tables, a reserved one, and tables
            return (marker, *_FRAME.unpack_from(content, start + 4)) if end - start >= 4 + _FRAME.size else None
    return None


def _chunks(content: bytes | memoryview) -> Iterator[tuple[bytes, int, int]]:
    """Kind, start and end of each whole chunk of a PNG."""
    at, kind, size = _SIGNATURE, b"", len(content)
    while kind != b"IEND" and at + 12 <= size:
        length, kind = _CHUNK.unpack_from(content, at)
        if at + 12 + length > size:
            return
        yield kind, at, at + 12 + length
        at += 12 + length


def _segments(content: bytes | memoryview) -> Iterator[tuple[int, int, int]]:
    """Marker, start and end of each segment of a JPEG before its first scan, as far as they are whole."""
    at, size = 2, len(content)
    while at + 4 <= size and content[at] == 0xFF and content[at + 1] not in (0xDA, 0xFF):
        end = at + 2 + int.from_bytes(content[at + 2 : at + 4], "big")
        if end > size:
            return
        yield content[at + 1], at, end
        at = end
