"""An archive that is already on a volume."""

import os
from pathlib import Path

from trainers.exits import Exit, ExitError, UserError
from trainers.prepare.sources.base import Source, Traffic


class PathSource(Source):
    """Reads ranges of a local file; a file that changes meanwhile is an error."""

    def __init__(self, path: Path, traffic: Traffic) -> None:
        self.label = str(path)
        self._traffic = traffic
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise UserError(f"{path} cannot be opened: {error.strerror}; set source.path to the archive") from None
        self._identity = self._stat()
        self.size = self._identity[0]
        self.identity = " ".join(map(str, self._identity[:2]))

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer with the file's bytes from `offset` on."""
        if self._stat() != self._identity:
            raise UserError(
                f"{self.label} changed while it was read; run the same command again once it no longer changes"
            )
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self._file.fileno(), [buffer[done:]], offset + done)
            except OSError as error:
                raise ExitError(
                    f"{self.label} cannot be read: {error.strerror}; check its volume", Exit.FAILED
                ) from None
            if count == 0:
                raise UserError(f"{self.label} is cut short: it ends at byte {offset + done:,}; copy it again")
            done += count
        self._traffic.add(received=done, requests=1)

    def close(self) -> None:
        """Close nothing: a thread may still be reading a range; the file closes with its last reader."""

    def _stat(self) -> tuple[int, int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns, found.st_ino
