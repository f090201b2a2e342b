"""A sample's bytes in a shard: a tar header, the image, padding, and a second member with its label.

The headers are those of POSIX.1-1988 ustar, without anything that depends on the clock or the user.
"""

from collections.abc import Sequence

BLOCK = 512
TAR_END = 2 * BLOCK
# An image's header, its label's header, and the label
OVERHEAD = 3 * BLOCK
PNG = b"\x89PNG\r\n\x1a\n"
_NAME_BYTES = 100
_IDS = b"0000644\0" + 2 * b"0000000\0"
_TIME = b"00000000000\0"
_REST = (b"0" + bytes(100) + b"ustar\x0000" + bytes(64) + 2 * b"0000000\0").ljust(356, b"\0")
# The checksum's own field counts as spaces
_SUM = sum(_IDS) + sum(_TIME) + sum(_REST) + 8 * ord(" ")


def frame(sample_id: int, label: int, content: memoryview | bytes) -> tuple[bytes, memoryview | bytes, bytes]:
    """Return the parts of a sample's place in their order; together a multiple of BLOCK bytes."""
    stem = b"%09d" % sample_id
    ending = b".png" if content[:8] == PNG else b".jpg"
    text = b"%d" % label
    tail = bytes(-len(content) % BLOCK) + tar_header(stem + b".cls", len(text)) + text.ljust(BLOCK, b"\0")
    return tar_header(stem + ending, len(content)), content, tail


def tar_header(name: bytes, size: int) -> bytes:
    """Make the header of a regular file; the name has at most 100 bytes."""
    digits = b"%011o\0" % size
    checksum = _SUM + sum(name) + sum(digits)
    return b"".join((name.ljust(_NAME_BYTES, b"\0"), _IDS, digits, _TIME, b"%06o\0 " % checksum, _REST))


def size_in_tar(parts: Sequence[memoryview | bytes]) -> int:
    """Count the bytes of a framed sample."""
    return sum(map(len, parts))
