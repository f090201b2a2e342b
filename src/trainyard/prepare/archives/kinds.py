"""Names the format of an object that is no zip and no tar, by its first bytes, with a remedy."""

from typing import NamedTuple

READ = "a zip, or a tar, plain or packed by gzip, bzip2 or xz"
_PACKINGS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}


class _Kind(NamedTuple):
    begins: tuple[bytes, ...]
    what: str
    remedy: str


_REPACK = "unpack it on a volume, and give the folder, or pack that again"
_NOT_THE_FILE = "open the address in a browser: it may need a login, a confirmation or another address"
_KINDS = (
    _Kind((b"\x28\xb5\x2f\xfd",), "is packed by zstd", "unpack it (zstd -d FILE), and give the tar that it holds"),
    _Kind((b"\x04\x22\x4d\x18",), "is packed by lz4", "unpack it (lz4 -d FILE), and give the tar that it holds"),
    _Kind((b"7z\xbc\xaf\x27\x1c",), "is a 7z archive", _REPACK),
    _Kind((b"Rar!\x1a\x07",), "is a RAR archive", _REPACK),
    _Kind((b"<!doctype", b"<html", b"<head"), "is an HTML page, not the archive", _NOT_THE_FILE),
    _Kind((b"<?xml",), "is an XML text, such as the message of an object store, not the archive", _NOT_THE_FILE),
    _Kind((b"{",), "is a JSON text, such as the message of a server, not the archive", _NOT_THE_FILE),
    _Kind((b"version https://git-lfs",), "is a Git LFS pointer, not the file", "fetch the file (git lfs pull)"),
    _Kind((b"PK\x07\x08PK",), "is a part of a zip in several parts", "join them (zip -s 0 FIRST.zip --out WHOLE.zip)"),
    _Kind((b"\xff\xd8\xff", b"\x89PNG"), "is a single image", "give the folder of it, or an archive"),
    _Kind((b"PAR1", b"\x89HDF", b"%PDF"), "is a file of tables or a document", "give an archive or a folder of images"),
)


def packing(head: bytes | memoryview) -> str:
    """Return what a tar may be packed by, if the object begins so, or nothing."""
    return next((name for begin, name in _PACKINGS.items() if bytes(head).startswith(begin)), "")


def unread(head: bytes | memoryview) -> str:
    """Words about what is not read, and what helps; nothing for anything else."""
    if not len(head):
        return f"is empty, and not a zip; fill it, or give {READ}"
    begin = bytes(head).removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n\t ")
    for kind in _KINDS:
        # Texts may be in any case; binary signatures are not
        if begin.startswith(kind.begins) or begin[:16].lower().startswith(kind.begins):
            return f"{kind.what}; {kind.remedy}. Read are {READ}"
    return ""


def unread_within(head: bytes) -> str:
    """Words about what a packed object holds in place of a tar; nothing where it may be a damaged tar."""
    if packed := packing(head):
        return f"is packed by {packed} once more; unpack it, and give the tar that it holds. Read are {READ}"
    return f"is a zip; unpack it, and give that. Read are {READ}" if head.startswith(b"PK\x03\x04") else unread(head)
