"""Members of any archive: their description, and extraction of their content with checks.

A member of a zip carries a header of its own, which must agree with the archive's directory; members of a tar and files
of a folder are bare bytes.
"""

import hashlib
import struct
import zlib
from collections.abc import Collection, Iterator
from typing import NamedTuple, Protocol

from trainyard.core.exits import Exit, ExitError, UserError
from trainyard.prepare.names import shown
from trainyard.prepare.sources.base import Source

STORED, DEFLATED = 0, 8
# Beside zip's own: bare bytes of a tar, whose CRC-32 a first pass found, and of a file in a folder, where none is known
CHECKED, BARE = 254, 255
# No image of a data set is larger; bounds the memory that a damaged or hostile member can take
LARGEST_MEMBER = 256 << 20
_PIECE = 4 << 20
# First bytes that tell what a file is (DICOM's are at 128), and in which many packed ones these are
_HEAD, _HEAD_PACKED = 160, 2048
LOCAL = struct.Struct("<4s5H3L2H")
LOCAL_HEADER_SIZE = LOCAL.size
# A member's own header: fixed part, name, extra field
LARGEST_HEADER = LOCAL.size + 2 * 0xFFFF


class Member(NamedTuple):
    """One file of the archive, as its directory describes it."""

    name: str
    # A hash of the name's bytes, to compare with the member's own header: a label is taken from the name
    name_hash: int
    offset: int
    stored: int
    size: int
    crc32: int
    method: int


class DamagedMemberError(Exception):
    """A member whose bytes differ from what the directory says; the message says how."""


class Container(Protocol):
    """The container of a dataset's members: a zip, a tar, or a folder."""

    source: Source
    # Where the last member ends at the latest
    members_end: int
    # Known after a whole pass over members(): it stands for every member's name, size and, where known, CRC-32
    fingerprint: str
    # Of the last whole pass over members(): names of folders, which may hold nothing
    folders: Collection[str]

    def members(self) -> Iterator[Member]:
        """Go through the members, holding only a piece of the directory in memory; folders are left out."""
        ...

    def read(self, member: Member) -> bytes:
        """Read one small member, such as a table of labels, whole and checked."""
        ...

    def drop_copy(self) -> bool:
        """Remove the copy that members are read from, where there is one; the next start makes it again."""
        return False


def refuse_unsafe(name: str, label: str) -> None:
    """Raise UserError at a name that would be outside of the folder in which an archive is unpacked."""
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or "\0" in name:
        raise UserError(f"{label} holds the unsafe name {name!r}; get it from a source that you trust")


def read_whole(container: Container, member: Member, length: int) -> bytes:
    """Read one small member out of `length` bytes at its offset."""
    source = container.source
    if max(member.stored, member.size) > LARGEST_MEMBER:
        raise UserError(f"{member.name} in {source.label} is larger than {LARGEST_MEMBER >> 20} MiB")
    try:
        return bytes(extract(source.read_range(member.offset, length), member))
    except DamagedMemberError as error:
        raise damage_error(container, member.name, str(error), "get the archive again") from None


def damage_error(container: Container, name: str, how: str, remedy: str) -> UserError | ExitError:
    """Return the error for a damaged member; where it was read from a copy, that was sound and is removed."""
    label = container.source.label
    if container.drop_copy():
        return ExitError(
            f"{name} is damaged in the unpacked copy of {label}, which was sound before: {how}; the copy was removed, "
            "run the same command again",
            Exit.FAILED,
        )
    return UserError(f"{name} in {label} is damaged: {how}; {remedy}")


def extract(raw: memoryview, member: Member) -> memoryview:
    """Take a member's content out of the bytes at its offset, checked as far as the container's directory allows."""
    if member.method in (CHECKED, BARE):
        return _verified(raw[: member.stored], member)
    if len(raw) < LOCAL.size:
        raise DamagedMemberError("it is cut short")
    signature, _, _, method, _, _, _, _, _, name_size, extra_size = LOCAL.unpack_from(raw)
    if signature != b"PK\x03\x04" or method != member.method or name_hash(own_name(raw)) != member.name_hash:
        raise DamagedMemberError("its header does not agree with the archive's directory")
    start = LOCAL.size + name_size + extra_size
    packed = raw[start : start + member.stored]
    if len(packed) != member.stored:
        raise DamagedMemberError("it is cut short")
    return _verified(packed if member.method == STORED else _inflate(packed, member.size), member)


def head(source: Source, member: Member, most: int) -> memoryview:
    """Read a member's first bytes unchecked, of at most `most` at its offset; fewer, or none, where it is damaged."""
    if member.method in (CHECKED, BARE):
        return source.read_range(member.offset, min(_HEAD, member.stored))
    raw = source.read_range(member.offset, min(LOCAL.size, most))
    if len(raw) < LOCAL.size:
        return raw[:0]
    *_, name_size, extra_size = LOCAL.unpack_from(raw)
    start = LOCAL.size + name_size + extra_size
    packed = source.read_range(member.offset + start, max(min(_HEAD_PACKED, most - start, member.stored), 0))
    if member.method == STORED:
        return packed[:_HEAD]
    try:
        return memoryview(zlib.decompressobj(-15).decompress(packed, _HEAD))
    except zlib.error:
        return packed[:0]


def _verified(content: memoryview, member: Member) -> memoryview:
    if len(content) != member.size:
        raise DamagedMemberError(f"it has {len(content):,} bytes instead of {member.size:,}")
    if member.method != BARE and zlib.crc32(content) != member.crc32:
        raise DamagedMemberError("its CRC-32 is wrong")
    return content


def name_of(container: Container, offset: int) -> str:
    """Look up the name of the member at an offset, as messages show it and `skip` takes it."""
    return next((shown(m.name) for m in container.members() if m.offset == offset), "a member")


def own_name(raw: memoryview) -> bytes:
    """Return the name in the own header of a member of a zip."""
    size = int.from_bytes(raw[26:28], "little")
    return bytes(raw[LOCAL.size : LOCAL.size + size])


def name_hash(name: bytes) -> int:
    """Hash a name to 64 bits."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def _inflate(packed: memoryview, size: int) -> memoryview:
    """Unpack at most one byte more than the directory announced, so that a zip bomb stays small."""
    unpacker = zlib.decompressobj(-15)
    try:
        if size <= _PIECE:
            return memoryview(unpacker.decompress(packed, size + 1))
        # In one piece zlib's module would hold a large member twice
        content, done = memoryview(bytearray(size + 1)), 0
        for at in range(0, len(packed), _PIECE >> 2):
            piece = unpacker.decompress(packed[at : at + (_PIECE >> 2)], size + 1 - done)
            content[done : done + len(piece)] = piece
            done += len(piece)
            if done > size:
                break
    except zlib.error:
        raise DamagedMemberError("it cannot be unpacked") from None
    return content[:done]
