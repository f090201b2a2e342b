"""Ctrl-C and a closed terminal: the work is saved first; a second Ctrl-C ends it at once."""

import errno
import io
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

# A wrapper that passes signals on (uv run, a container's init) and the terminal may both deliver the same Ctrl-C
SAME_SECONDS = 0.5
SHOW_CURSOR = b"\x1b[?25h"
SAYS = "Ctrl-C: the run saves and ends; Ctrl-C again ends it at once, without saving\n"


def stop_at_first(stop: Callable[[], None]) -> None:
    """Call `stop` at the first SIGINT from here on; a second one raises KeyboardInterrupt in the main thread."""

    def first(*_: object) -> None:
        stop()
        end_at_second(lambda: None)

    signal.signal(signal.SIGINT, first)


def stop_at_hangup(stop: Callable[..., None]) -> None:
    """Call `stop` with a handler's arguments once the terminal is closed (SIGHUP); not where nohup has it ignored."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        return

    def hung_up(*given: Any) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the shell and the kernel both send it
        stop(*given)

    signal.signal(signal.SIGHUP, hung_up)


class _Terminal(io.FileIO):
    """A terminal that may be closed while a program prints to it: from then on nothing is shown."""

    def write(self, data: Any) -> int:
        """Write; what a closed terminal does not take goes nowhere."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)


def outlive_terminal() -> None:
    """Let this process print on, to nowhere, once its terminal is closed: each print would raise OSError."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream.isatty():
            binary = io.BufferedWriter(_Terminal(stream.fileno(), "w", closefd=False))
            setattr(sys, name, io.TextIOWrapper(binary, stream.encoding, stream.errors, line_buffering=True))


def end_at_second(end: Callable[[], None]) -> None:
    """After a first SIGINT, say what comes; at the next one call `end`, and raise KeyboardInterrupt."""
    begun = time.monotonic()

    def second(*_: object) -> None:
        if time.monotonic() - begun >= SAME_SECONDS:
            end()
            if os.isatty(1):  # a bar of progress that was killed has left it hidden
                os.write(1, SHOW_CURSOR)
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, second)
    os.write(2, SAYS.encode())  # a handler of a signal may not print: it may have interrupted a print
