"""An archive that is already on a volume."""

import os
from pathlib import Path

from trainyard.core.exits import UserError
from trainyard.core.storage import storage
from trainyard.prepare.sources.base import Source, Traffic


class PathSource(Source):
    """Reads ranges of a file; one that changes meanwhile is an error, and storage that fails is retried."""

    def __init__(self, path: Path, traffic: Traffic) -> None:
        self.label, self._path = str(path), path  # messages may name another, of which this file is made
        self._traffic = traffic
        try:
            self._file = storage.open_file(path, buffering=0)
        except OSError as error:
            several = "; a pattern names several, and one is read: join plain tars (`cat a.tar b.tar > all.tar`)"
            more = several if "*" in str(path) else ""
            raise UserError(
                f"{path} cannot be opened: {error.strerror}; set source.path to the archive{more}"
            ) from None
        self._identity = self._stat()
        self.size = self._identity[0]
        self.identity = " ".join(map(str, self._identity[:2]))

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer with the file's bytes from `offset` on; raises UserError and StorageError."""
        try:
            self._read(offset, buffer)
        except OSError:
            storage.recover(self._path, self._read_reopened, offset, buffer)
        self._traffic.add(received=len(buffer), requests=1)

    def _read(self, offset: int, buffer: memoryview) -> None:
        if self._stat() != self._identity:
            raise UserError(
                f"{self.label} changed while it was read; run the same command again once it no longer changes"
            )
        done = 0
        while done < len(buffer):
            count = os.preadv(self._file.fileno(), [buffer[done:]], offset + done)
            if count == 0:
                raise UserError(f"{self.label} is cut short: it ends at byte {offset + done:,}; copy it again")
            done += count

    def _read_reopened(self, offset: int, buffer: memoryview) -> None:
        """Read from a file that is opened anew, under the number of the old one, which other threads may be reading."""
        with self._path.open("rb", buffering=0) as fresh:
            os.dup2(fresh.fileno(), self._file.fileno(), inheritable=False)
        self._read(offset, buffer)

    def close(self) -> None:
        """Close nothing: a thread may still be reading a range; the file closes with its last reader."""

    def _stat(self) -> tuple[int, int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns, found.st_ino
