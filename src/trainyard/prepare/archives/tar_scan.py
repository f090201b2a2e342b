"""Goes through a tar's headers and lists its files, with the CRC-32 of each.

Formats: ustar and pax headers (POSIX.1-2017, utility pax), and of GNU tar long names and base-256 numbers (its manual,
"Basic Tar Format").

Why not the standard library's tarfile in its mode `r|`: it was tried, and takes as many lines. It ends at a damaged
header as if the tar ended there, and before Python 3.11.10 and 3.12.6 it reads another name out of a damaged pax
record, both silently: images would be lost. It reads extension headers however long they claim to be, keeps all
members in memory, and takes 20 to 25 % more CPU time (measured on files of 20 and 110 KB). Each of the first four
needs a hook into its private parts.
"""

import re
from collections.abc import Iterator

from trainyard.core.exits import UserError
from trainyard.prepare.archives.kinds import unread_within
from trainyard.prepare.archives.members import CHECKED, Member, name_hash, refuse_unsafe
from trainyard.prepare.archives.stream import PARTS, CutShortError, Reader
from trainyard.prepare.names import clean_path, noise, shown

BLOCK = 512
_LARGEST_EXTENSION = 1 << 20
# `tar -b 2048` fills up to a whole MiB; the usual is 10 KiB
_LARGEST_PADDING = 1 << 20
# Python's int() reads signs, spaces and underscores, too
_OCTAL, _DECIMAL = re.compile(rb"[0-7]*"), re.compile(rb"[0-9]{1,20}")
_LARGEST_NUMBER = (1 << 63) - 1
_SPARSE = "GNU.sparse."  # how all that extension headers tell of a sparse file begins
_USED = ("path", "size")  # of what they tell besides
_FILES, _FOLDER, _LINKS = (b"0", b"\0", b"7"), b"5", (b"1", b"2")
_IGNORED = (b"3", b"4", _FOLDER, b"6", b"g", b"K")


def scan(reader: Reader, label: str) -> Iterator[Member]:
    """Yield each file, and each folder by a name with a slash at its end; `label` names the tar in messages.

    Reads on behind the zeros that end a tar: tars that were joined by `cat` go on there. Raises UserError where
    something else follows on them, or more zeros than a tar ends with.
    """
    overrides: dict[str, bytes] = {}
    while True:
        at, zeros = reader.position, 0
        try:
            while not (header := reader.take(BLOCK)).strip(b"\0"):
                overrides, zeros = {}, zeros + BLOCK
                _refuse_zeros(zeros, at, label)
            if not sound(header):
                raise _no_header(header, at, zeros, label)
            at, zeros = at + zeros, 0
            kind = header[156:157]
            told = overrides.get("size") if kind not in (b"x", b"g", b"L", b"K") else None
            size = _number(header[124:136]) if told is None else _decimal(told)
            if kind in (b"x", b"L"):
                overrides |= _extension(reader, kind, size, label, at)
                continue
            path = overrides.get("path") or _own_path(header)
            if kind in _FILES and _SPARSE in overrides:
                kind = b"S"
            member = Member(_checked_name(path, kind, label), 0, reader.position, size, size, 0, CHECKED)
            crc = reader.crc32(size)
            reader.take(-reader.position % BLOCK)
        except CutShortError:
            if zeros:
                return
            raise UserError(
                f"{label} is cut short: it ends at byte {reader.position:,} without a tar's end; get it again{PARTS}"
            ) from None
        except ValueError:
            raise UserError(f"{label} is not a sound tar: byte {at:,} holds no header; get it again") from None
        if kind not in (b"g", b"K"):
            overrides = {}
        if kind in (*_FILES, _FOLDER):
            yield _listed(member, kind, crc)


def _refuse_zeros(zeros: int, at: int, label: str) -> None:
    """Raise UserError where there are more zeros than a tar ends with: what follows on them need not be read."""
    if zeros > _LARGEST_PADDING:
        raise UserError(
            f"{label} has more than {_LARGEST_PADDING:,} zeros from byte {at:,} on, as a file does whose download was "
            "broken off; get it again, or pack it again if it is whole"
        )


def _no_header(header: bytes, at: int, zeros: int, label: str) -> UserError:
    """Return the error for a block behind so many zeros at `at` that is no header."""
    if at == 0 and (what := unread_within(header)):
        return UserError(f"{label} is packed, and what it holds {what}")
    again = "get it again, or pack it again if `tar -tf` lists all of it" if zeros else "get it again"
    return UserError(f"{label} is not a sound tar: its header at byte {at + zeros:,} is damaged; {again}")


def _listed(member: Member, kind: bytes, crc: int) -> Member:
    """Return a file with its checksum, or a folder: old tars know one by its name alone."""
    if kind == _FOLDER or member.name.endswith("/"):
        return member._replace(name=f"{member.name.rstrip('/')}/")
    return member._replace(crc32=crc, name_hash=name_hash(member.name.encode("utf-8", "surrogateescape")))


def sound(header: bytes) -> bool:
    """Compare a header's checksum with its bytes, as signed too: old tars summed so."""
    try:
        wanted = _number(header[148:156])
    except ValueError:
        return False
    bare = header[:148] + b" " * 8 + header[156:BLOCK]
    return wanted in (sum(bare), sum(byte - 256 * (byte > 127) for byte in bare))


def _checked_name(path: bytes, kind: bytes, label: str) -> str:
    """Return a member's name, if what it is can be read."""
    name = path.decode("utf-8", "surrogateescape").removeprefix("./")
    if kind in _IGNORED:
        return name
    refuse_unsafe(name, label)
    if kind in _LINKS and not noise(clean_path(name)):
        raise UserError(
            f"{shown(name)} in {label} is a link; pack it again with `tar --dereference --hard-dereference`, so that "
            "images are in the archive"
        )
    if kind not in (*_FILES, *_LINKS):
        raise UserError(
            f"{shown(name)} in {label} is of tar's type {kind.decode('latin-1')!r}, which is not read; pack it again "
            "as plain files, without --sparse"
        )
    return name


def _own_path(header: bytes) -> bytes:
    name, prefix = header[:100].partition(b"\0")[0], header[345:500].partition(b"\0")[0]
    # GNU tar keeps other things where ustar has the prefix
    return prefix + b"/" + name if prefix and header[257:263] == b"ustar\0" else name


def _extension(reader: Reader, kind: bytes, size: int, label: str, at: int) -> dict[str, bytes]:
    """Read a header that tells more about the next one."""
    if size > _LARGEST_EXTENSION:
        raise UserError(f"{label} is not a sound tar: the header at byte {at:,} is too long; get it again")
    text = reader.take(size)
    reader.take(-size % BLOCK)
    if kind == b"L":
        return {"path": text.rstrip(b"\0")}
    found = {}
    while text:
        length = _decimal(text.partition(b" ")[0])
        record, text = text[:length], text[length:]
        key, equals, value = record.partition(b" ")[2].removesuffix(b"\n").partition(b"=")
        if not equals or len(record) != length or not record.endswith(b"\n"):
            raise ValueError("not a record")
        name = key.decode("utf-8", "replace")
        if name in _USED or name.startswith(_SPARSE):
            found[_SPARSE if name.startswith(_SPARSE) else name] = value
    return found


def _number(field: bytes) -> int:
    """Read a number from 0 on: octal digits, or base 256 behind a set first bit; raises ValueError."""
    if field[0] & 0x80:
        number = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if number > _LARGEST_NUMBER:  # or below zero
            raise ValueError(number)
        return number
    if not _OCTAL.fullmatch(digits := field.strip(b" \0")):
        raise ValueError(digits)
    return int(digits or b"0", 8)


def _decimal(digits: bytes) -> int:
    """Read a number of an extension header; raises ValueError."""
    if not _DECIMAL.fullmatch(digits) or int(digits) > _LARGEST_NUMBER:
        raise ValueError(digits)
    return int(digits)
