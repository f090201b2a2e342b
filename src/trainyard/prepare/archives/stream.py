"""Reads an object from start to end: several ranges at a time, unpacked if need be."""

import bz2
import lzma
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import BinaryIO, Protocol

from trainyard.core.exits import UserError
from trainyard.prepare.sources.base import Source

PIECE = 4 << 20
DEPTH = 8
# Images hardly compress; a file that unpacks to more than this many times its size is not a dataset
LARGEST_RATIO = 100
_PART = 64 << 10
_ALLOWANCE = 64 << 20
# What also helps where an object ends too early
PARTS = ", or, if it is the first of several parts, join them (`cat PART1 PART2 > WHOLE`)"
# `xz -9` takes 65 MiB
_LARGEST_DICTIONARY = 128 << 20


class CutShortError(Exception):
    """The stream ended too early."""


@contextmanager
def stream(source: Source) -> Iterator[Iterator[memoryview]]:
    """Give the object's bytes in order; holds at most DEPTH pieces in memory."""
    pool = ThreadPoolExecutor(DEPTH, thread_name_prefix="stream")
    try:
        yield _pieces(source, pool)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _pieces(source: Source, pool: ThreadPoolExecutor) -> Iterator[memoryview]:
    under_way: deque[Future[memoryview]] = deque()
    for offset in range(0, source.size, PIECE):
        under_way.append(pool.submit(source.read_range, offset, min(PIECE, source.size - offset)))
        if len(under_way) == DEPTH:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


class _Unpacker(Protocol):
    """Unpacks one member of a packed stream; where `most` holds it back, it goes on with no further data."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """zlib's has another interface: it gives back what it has not taken."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(data or self._inner.unconsumed_tail, max_length)


_UNPACKERS: dict[str, Callable[[], _Unpacker]] = {
    "gzip": _Gzip,
    "bzip2": bz2.BZ2Decompressor,
    "xz": partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _LARGEST_DICTIONARY),
}


def decompress(chunks: Iterator[memoryview], source: Source, packing: str = "gzip") -> Iterator[memoryview]:
    """Unpack gzip, bzip2 or xz, also of several members, a bounded piece at a time."""
    unpacker = _UNPACKERS[packing]()
    made = 0
    for part in _parts_of(chunks):
        rest = bytes(part)
        while True:
            if unpacker.eof:
                if not rest.strip(b"\0"):
                    break
                unpacker = _UNPACKERS[packing]()
            try:
                piece = unpacker.decompress(rest, PIECE)
            except (zlib.error, lzma.LZMAError, OSError) as error:
                raise UserError(f"{source.label} is damaged: it cannot be unpacked ({error}); get it again") from None
            made += len(piece)
            if made > LARGEST_RATIO * source.size + _ALLOWANCE:
                raise UserError(
                    f"{source.label} unpacks to more than {LARGEST_RATIO} times its {source.size:,} bytes, which no "
                    "dataset of images does; get it from a source that you trust"
                )
            yield memoryview(piece)
            if not unpacker.eof and unpacker.needs_input:
                break
            rest = unpacker.unused_data if unpacker.eof else b""
    if not unpacker.eof:
        raise UserError(f"{source.label} is cut short: its last part is missing; get it again{PARTS}")


def _parts_of(chunks: Iterator[memoryview]) -> Iterator[memoryview]:
    """Small parts: what follows the end of a gzip member is copied each time, and a hostile file is members alone."""
    for chunk in chunks:
        yield from (chunk[at : at + _PART] for at in range(0, len(chunk), _PART))


class Reader:
    """Takes exact numbers of bytes from chunks of any size, and writes a copy of all of them if asked."""

    def __init__(self, chunks: Iterator[memoryview], copy: BinaryIO | None = None) -> None:
        self._chunks = chunks
        self._copy = copy
        self._rest = memoryview(b"")
        self.position = 0

    def take(self, count: int) -> bytes:
        """Return exactly so many bytes; raises CutShortError where there are fewer."""
        return b"".join(self._parts(count))

    def crc32(self, count: int) -> int:
        """Pass over so many bytes and return their CRC-32."""
        crc = 0
        for part in self._parts(count):
            crc = zlib.crc32(part, crc)
        return crc

    def exhaust(self) -> None:
        """Pass over what is left."""
        while self._more():
            self.position += len(self._rest)
            self._rest = memoryview(b"")

    def _parts(self, count: int) -> Iterator[memoryview]:
        while count > 0:
            if not self._rest and not self._more():
                raise CutShortError
            part, self._rest = self._rest[:count], self._rest[count:]
            count -= len(part)
            self.position += len(part)
            yield part

    def _more(self) -> bool:
        chunk = next(self._chunks, None)
        while chunk is not None and not len(chunk):
            chunk = next(self._chunks, None)
        if chunk is None:
            return False
        if self._copy:
            self._copy.write(chunk)
        self._rest = chunk
        return True
