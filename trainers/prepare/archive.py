"""Reads a zip archive by ranges: its directory in a stream, its members one by one.

Only what a large archive needs: stored and deflated members, zip64, no encryption. Nothing in the directory is trusted:
sizes are bounded, a member's own header must agree with the directory, and the CRC-32 of what comes out is checked.
Format: PKWARE's APPNOTE.TXT 6.3.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from trainers.exits import UserError
from trainers.prepare.sources.base import Source

STORED, DEFLATED = 0, 8
# Beside zip's own: bare bytes of a tar, whose CRC-32 a first pass found, and of a file in a folder, where none is known
CHECKED, BARE = 254, 255
# No picture of a data set is larger; a bound on what one damaged or hostile member may take of memory
LARGEST_MEMBER = 256 << 20
_PIECE = 4 << 20
_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
LOCAL_HEADER_SIZE = _LOCAL.size
# A member's own header: fixed part, name, extra field
LARGEST_HEADER = _LOCAL.size + 2 * 0xFFFF


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
    """A member whose bytes are not what the directory says. The message says how."""


class Container(Protocol):
    """What holds the members of a dataset: a zip, a tar, or a folder."""

    source: Source
    # Where the last member ends at the latest
    members_end: int
    # Known after a whole pass over members(): it stands for every member's name, size and, where known, CRC-32
    fingerprint: str

    def members(self) -> Iterator[Member]:
        """Go through the members, holding only a piece of the directory in memory; folders are left out."""
        ...

    def read(self, member: Member) -> bytes:
        """Read one small member, such as a table of labels, whole and checked."""
        ...


class Archive(Container):
    """A zip archive whose directory has been found and looks sound."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.members_end, self.directory_size, self.count = _find_directory(source)
        # Of the directory's bytes
        self.fingerprint = ""

    def members(self) -> Iterator[Member]:
        """Go through the directory in its order, holding only a piece of it in memory; folders are left out."""
        digest = hashlib.sha256()
        buffer = b""
        position = seen = 0
        while position < self.directory_size:
            length = min(_PIECE, self.directory_size - position)
            piece = self.source.read_range(self.members_end + position, length)
            digest.update(piece)
            position += length
            buffer += piece
            at = 0
            while at + _CENTRAL.size <= len(buffer):
                end, member = self._parse_entry(buffer, at)
                if end > len(buffer):
                    break
                at = end
                seen += 1
                if member is not None:
                    yield member
            buffer = buffer[at:]
        if buffer or seen != self.count:
            raise self._unsound(f"its directory holds {seen:,} entries instead of {self.count:,}")
        self.fingerprint = digest.hexdigest()

    def read(self, member: Member) -> bytes:
        """Read one small member, such as a table of labels, whole and checked."""
        length = min(LARGEST_HEADER + member.stored, self.members_end - member.offset)
        return read_whole(self.source, member, length)

    def _parse_entry(self, buffer: bytes, at: int) -> tuple[int, Member | None]:
        """Parse the entry at `at`; its end may lie beyond the buffer, and then the rest is not looked at."""
        fields = _CENTRAL.unpack_from(buffer, at)
        signature, _, _, flags, method, _, _, crc, stored, size, name_size, extra_size, comment_size = fields[:13]
        offset = fields[16]
        if signature != b"PK\x01\x02":
            raise self._unsound("its directory is damaged")
        name_end = at + _CENTRAL.size + name_size
        end = name_end + extra_size + comment_size
        if end > len(buffer):
            return end, None
        raw_name = buffer[at + _CENTRAL.size : name_end]
        try:
            name = raw_name.decode("utf-8" if flags & 0x800 or raw_name.isascii() else "cp437")
        except UnicodeDecodeError:
            name = raw_name.decode("cp437")
        if 0xFFFFFFFF in (stored, size, offset):
            size, stored, offset = _zip64(buffer[name_end : name_end + extra_size], size, stored, offset)
        if name.endswith("/") and not size:
            return end, None
        refuse_unsafe(name, self.source.label)
        if flags & 1:
            raise UserError(f"{name} in {self.source.label} is encrypted; give an archive without a password")
        if method not in (STORED, DEFLATED):
            raise UserError(
                f"{name} in {self.source.label} is packed by method {method}; only stored and deflated are read"
            )
        if offset + _LOCAL.size + stored > self.members_end:
            raise self._unsound(f"{name} would lie beyond its end")
        return end, Member(name, name_hash(raw_name), offset, stored, size, crc, method)

    def _unsound(self, why: str) -> UserError:
        return UserError(f"{self.source.label} is not a sound zip archive: {why}; get it again")


def refuse_unsafe(name: str, label: str) -> None:
    """Stop at a name that would lie outside of where an archive is unpacked."""
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or "\0" in name:
        raise UserError(f"{label} holds the unsafe name {name!r}; get it from a source that you trust")


def read_whole(source: Source, member: Member, length: int) -> bytes:
    """Read one small member out of `length` bytes at its offset."""
    if max(member.stored, member.size) > LARGEST_MEMBER:
        raise UserError(f"{member.name} in {source.label} is larger than {LARGEST_MEMBER >> 20} MiB")
    try:
        return bytes(extract(source.read_range(member.offset, length), member))
    except DamagedMemberError as error:
        raise UserError(f"{member.name} in {source.label} is damaged: {error}; get the archive again") from None


def extract(raw: memoryview, member: Member) -> memoryview:
    """Take a member's content out of the bytes at its offset, checked as far as the container's directory allows."""
    if member.method in (CHECKED, BARE):
        return _verified(raw[: member.stored], member)
    if len(raw) < _LOCAL.size:
        raise DamagedMemberError("it is cut short")
    signature, _, _, method, _, _, _, _, _, name_size, extra_size = _LOCAL.unpack_from(raw)
    if signature != b"PK\x03\x04" or method != member.method or name_hash(own_name(raw)) != member.name_hash:
        raise DamagedMemberError("its header does not agree with the archive's directory")
    start = _LOCAL.size + name_size + extra_size
    packed = raw[start : start + member.stored]
    if len(packed) != member.stored:
        raise DamagedMemberError("it is cut short")
    return _verified(packed if member.method == STORED else _inflate(packed, member.size), member)


def _verified(content: memoryview, member: Member) -> memoryview:
    if len(content) != member.size:
        raise DamagedMemberError(f"it has {len(content):,} bytes instead of {member.size:,}")
    if member.method != BARE and zlib.crc32(content) != member.crc32:
        raise DamagedMemberError("its CRC-32 is wrong")
    return content


def name_of(container: Container, offset: int) -> str:
    """Look up the name of the member at an offset."""
    return next((m.name for m in container.members() if m.offset == offset), "a member")


def own_name(raw: memoryview) -> bytes:
    """Return the name in the own header of a member of a zip."""
    size = int.from_bytes(raw[26:28], "little")
    return bytes(raw[_LOCAL.size : _LOCAL.size + size])


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


def _zip64(extra: bytes, size: int, stored: int, offset: int) -> tuple[int, int, int]:
    """Replace the sizes that did not fit 32 bits by those of the zip64 extra field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            wanted = (size, stored, offset).count(0xFFFFFFFF)
            if length < 8 * wanted or at + 4 + 8 * wanted > len(extra):
                break
            values = iter(struct.unpack_from(f"<{wanted}Q", extra, at + 4))
            size, stored, offset = (next(values) if v == 0xFFFFFFFF else v for v in (size, stored, offset))
            break
        at += 4 + length
    return size, stored, offset


def _find_directory(source: Source) -> tuple[int, int, int]:
    """Find the archive's directory from its end: offset, size, number of entries."""
    cut = UserError(
        f"{source.label} ({source.size:,} bytes) is cut short or neither a zip nor a tar: the directory that ends a "
        "zip is not there; get it again and compare its size with the original's"
    )
    tail_size = min(source.size, _END.size + 0xFFFF + _END64_LOCATOR.size + _END64.size)
    tail = bytes(source.read_range(source.size - tail_size, tail_size)) if tail_size else b""
    base = source.size - tail_size
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        raise cut
    _, _, _, _, count, size, offset, _ = _END.unpack_from(tail, at)
    end = base + at
    locator_at = at - _END64_LOCATOR.size
    if locator_at >= 0 and tail[locator_at : locator_at + 4] == b"PK\x06\x07":
        _, _, end64, _ = _END64_LOCATOR.unpack_from(tail, locator_at)
        if not base <= end64 <= end - _END64.size:
            raise cut
        fields = _END64.unpack_from(tail, end64 - base)
        if fields[0] != b"PK\x06\x06":
            raise cut
        count, size, offset, end = fields[7], fields[8], fields[9], end64
    if offset + size != end:
        raise UserError(
            f"{source.label} is not a sound zip archive: its directory should be at byte {offset:,} and end at "
            f"{end:,}, so a part of it is missing; get it again"
        )
    return offset, size, count
