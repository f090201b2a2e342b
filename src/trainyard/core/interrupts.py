"""Ctrl-C: the first one lets the work be saved, a second one ends it at once."""

import os
import signal
import time
from collections.abc import Callable

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
