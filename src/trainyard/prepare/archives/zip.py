"""Reads a zip archive by ranges: its directory in a stream, its members one by one.

It supports what a large archive needs: stored and deflated members, zip64, no encryption. Nothing in the directory is
trusted: sizes are bounded, a member's own header must agree with the directory, and the content with its CRC-32.
Format: PKWARE's APPNOTE.TXT 6.3. macOS's Finder and `ditto` write no zip64: counts and offsets that are too large for
their fields lose their upper bits there, which the order of the members gives back.
"""

import hashlib
import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress

from trainyard.core.exits import UserError
from trainyard.prepare.archives.kinds import READ
from trainyard.prepare.archives.members import (
    DEFLATED,
    LARGEST_HEADER,
    LOCAL_HEADER_SIZE,
    STORED,
    Container,
    Member,
    name_hash,
    read_whole,
    refuse_unsafe,
)
from trainyard.prepare.names import clean_path, noise
from trainyard.prepare.sources.base import Source

_PIECE = 4 << 20
_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_WRAP = 1 << 32


class Archive(Container):
    """A zip archive whose directory has been found and looks sound."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.members_end, self.directory_size, self.count, self._wraps = _find_directory(source)
        # Of the directory's bytes
        self.fingerprint = ""
        self.folders: list[str] = []
        # Of the last pass: names in an encoding that nothing tells
        self.guessed = 0
        self.foreign = ""
        self._undeclared = False

    def members(self) -> Iterator[Member]:
        """Go through the directory in its order, holding only a piece of it in memory; folders are left out."""
        digest = hashlib.sha256()
        buffer = b""
        position = seen = offset = self.guessed = 0
        folders = []
        while position < self.directory_size:
            length = min(_PIECE, self.directory_size - position)
            piece = self.source.read_range(self.members_end + position, length)
            digest.update(piece)
            position += length
            buffer += piece
            at = 0
            while at + _CENTRAL.size <= len(buffer):
                end, member = self._parse_entry(buffer, at, offset)
                if member is None:
                    break
                at, offset = end, member.offset
                seen += 1
                if member.name.endswith("/") and not member.size:
                    folders.append(member.name)
                else:
                    yield member
            buffer = buffer[at:]
        if buffer or seen not in (self.count, self.count + (seen & ~0xFFFF)):
            raise self._unsound(f"its directory holds {seen:,} entries instead of {self.count:,}")
        if self._undeclared:  # earlier versions read these names otherwise
            digest.update(b"UTF-8")
        self.fingerprint, self.folders = digest.hexdigest(), folders

    def read(self, member: Member) -> bytes:
        """Read one small member, such as a table of labels, whole and checked."""
        length = min(LARGEST_HEADER + member.stored, self.members_end - member.offset)
        return read_whole(self, member, length)

    def _parse_entry(self, buffer: bytes, at: int, before: int) -> tuple[int, Member | None]:
        """Return the end of the entry at `at`, and the entry if it ends in the buffer; raises UserError.

        `before` is the offset of the one before, for offsets that lack their upper bits.
        """
        fields = _CENTRAL.unpack_from(buffer, at)
        signature, _, _, flags, method, _, _, crc, stored, size, name_size, extra_size, comment_size = fields[:13]
        attributes, offset = fields[15:]
        if signature != b"PK\x01\x02":
            raise self._unsound("its directory is damaged")
        name_end = at + _CENTRAL.size + name_size
        end = name_end + extra_size + comment_size
        if end > len(buffer):
            return end, None
        raw_name = buffer[at + _CENTRAL.size : name_end]
        name = self._name(raw_name, buffer[name_end : name_end + extra_size], declared=bool(flags & 0x800))
        if 0xFFFFFFFF in (stored, size, offset):
            size, stored, offset = _zip64(buffer[name_end : name_end + extra_size], size, stored, offset)
        if self._wraps:
            offset = before + (offset - before) % _WRAP
        if name.endswith("/") and not size:
            return end, Member(name, 0, offset, 0, 0, 0, STORED)
        refuse_unsafe(name, self.source.label)
        if stat.S_ISLNK(attributes >> 16) and not noise(clean_path(name)):
            raise UserError(
                f"{name} in {self.source.label} is a link; pack it again with what it leads to (`zip -r`, without -y), "
                "so that images are in the archive"
            )
        if flags & 1:
            raise UserError(f"{name} in {self.source.label} is encrypted; give an archive without a password")
        if method not in (STORED, DEFLATED):
            raise UserError(
                f"{name} in {self.source.label} is packed by method {method}; only stored and deflated are read"
            )
        if offset + LOCAL_HEADER_SIZE + stored > self.members_end:
            raise self._unsound(f"{name} would lie beyond its end")
        return end, Member(name, name_hash(raw_name), offset, stored, size, crc, method)

    def _name(self, raw: bytes, extra: bytes, *, declared: bool) -> str:
        """Decode a name: macOS writes UTF-8 without saying so, WinRAR beside a name in the system's code page."""
        if raw.isascii():
            return raw.decode()
        for text in (raw, _unicode_path(raw, extra)):
            with suppress(UnicodeDecodeError):
                if name := text.decode():
                    self._undeclared |= not declared
                    return name
        self.guessed += 1
        self.foreign = raw.decode("cp437")
        return self.foreign

    def _unsound(self, why: str) -> UserError:
        return UserError(f"{self.source.label} is not a sound zip archive: {why}; get it again")


def _unicode_path(raw: bytes, extra: bytes) -> bytes:
    """Return the name in UTF-8 that an extra field gives, if it is about this name (APPNOTE 4.6.9), or nothing."""
    for kind, field in _extra_fields(extra):
        if kind == 0x7075 and field[:5] == b"\1" + zlib.crc32(raw).to_bytes(4, "little"):
            return field[5:]
    return b""


def _extra_fields(extra: bytes) -> Iterator[tuple[int, bytes]]:
    """Each field's number and content; one that is cut short is the last."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        yield kind, extra[at + 4 : at + 4 + length]
        at += 4 + length


def _zip64(extra: bytes, size: int, stored: int, offset: int) -> tuple[int, int, int]:
    """Replace the sizes that did not fit 32 bits by those of the zip64 extra field."""
    wanted = (size, stored, offset).count(0xFFFFFFFF)
    field = next((field for kind, field in _extra_fields(extra) if kind == 1), b"")
    if len(field) >= 8 * wanted:
        values = iter(struct.unpack_from(f"<{wanted}Q", field))
        size, stored, offset = (next(values) if v == 0xFFFFFFFF else v for v in (size, stored, offset))
    return size, stored, offset


def _find_directory(source: Source) -> tuple[int, int, int, bool]:
    """Find the archive's directory from its end: offset, size, number of entries, and whether offsets lack bits."""
    begins = bytes(source.read_range(0, min(4, source.size)))
    why = (
        "is cut short: the directory that ends a zip is not there; get it again and compare its size with the "
        "original's; if it is one of several parts, join them (`cat PART1 PART2 > WHOLE`)"
        if begins == b"PK\x03\x04"
        else f"is neither a zip nor a tar, nor anything else that is known: it begins with {begins!r}; give {READ}"
    )
    cut = UserError(f"{source.label} ({source.size:,} bytes) {why}")
    tail_size = min(source.size, _END.size + 0xFFFF + _END64_LOCATOR.size + _END64.size)
    tail = bytes(source.read_range(source.size - tail_size, tail_size)) if tail_size else b""
    base = source.size - tail_size
    at = _find_end(tail)
    if at < 0:
        raise cut
    _, disk, _, _, count, size, offset, _ = _END.unpack_from(tail, at)
    if disk not in (0, 0xFFFF):
        raise UserError(
            f"{source.label} is the last of {disk + 1} parts of a zip; join them (zip -s 0 FIRST.zip --out WHOLE.zip)"
        )
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
    start = _check_place(source, begins, offset, size, end)
    return start, size, count, start != offset


def _check_place(source: Source, begins: bytes, offset: int, size: int, end: int) -> int:
    """Return where the directory begins, `offset` or, where that lacks bits, the true place; raises UserError."""
    if 0 < offset + size < end and bytes(source.read_range(end - size, 4)) == b"PK\x01\x02":
        if (end - size - offset) % _WRAP == 0:
            return end - size
        whose = (
            "of another zip, as after `cat`; unpack each of them, and pack one archive of all"
            if begins == b"PK\x03\x04"
            else "as a program that unpacks itself has; correct it (`zip -A FILE`)"
        )
        raise UserError(
            f"{source.label} has {end - size - offset:,} bytes before the zip archive begins, which its directory does "
            f"not count, {whose}"
        )
    if offset + size != end:
        raise UserError(
            f"{source.label} is not a sound zip archive: its directory should be at byte {offset:,} and end at "
            f"{end:,}, so a part of it is missing; get it again"
        )
    return offset


def _find_end(tail: bytes) -> int:
    """Return where the record is that ends a zip, or -1: the last that has what follows it as its comment, or any."""
    found = at = tail.rfind(b"PK\x05\x06", 0, max(len(tail) - _END.size + 4, 0))
    while at >= 0:
        if at + _END.size + _END.unpack_from(tail, at)[-1] == len(tail):
            return at
        at = tail.rfind(b"PK\x05\x06", 0, at)
    return found
