"""Programs that answer one text after another on their standard streams, started once for all tests of a file."""

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

_running: dict[tuple[str | Path, ...], "Filter"] = {}


class Filter:
    """A program that reads its standard input as it comes, and answers each part of it at once."""

    def __init__(self, command: tuple[str | Path, ...]) -> None:
        self._command = command
        self._said, self._read = tempfile.TemporaryFile(), 0  # noqa: SIM115 - until it ends
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._said, text=True)

    def ask(self, text: str, last: Callable[[str], bool] = lambda line: True) -> list[str]:
        """Write a text; return the lines that answer it, to the one that `last` knows: with no word, the first."""
        assert self._process.stdin
        assert self._process.stdout
        lines: list[str] = []
        try:
            self._process.stdin.write(text)
            self._process.stdin.flush()
            while not lines or not last(lines[-1]):
                lines.append(next(self._process.stdout))
        except (BrokenPipeError, StopIteration):
            raise AssertionError(f"{self._command} has ended: {self.warnings()}") from None
        return lines

    def warnings(self) -> str:
        """Return what it has said on standard error since the last call."""
        more = os.pread(self._said.fileno(), 1 << 20, self._read)  # its own place to write stays where it is
        self._read += len(more)
        return more.decode()

    def end(self) -> None:
        """End its input, and wait for it."""
        self._process.communicate()
        self._said.close()


def started(*command: str | Path, number: int = 0) -> Filter:
    """Return the filter of a command, the same until `end_all`; several at once by their numbers."""
    key = (*command, str(number))
    if key not in _running:
        _running[key] = Filter(command)
    return _running[key]


def end_all() -> None:
    """End all of them: their processor time is that of the file of tests whose they are."""
    while _running:
        _running.popitem()[1].end()
