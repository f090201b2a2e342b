"""How a process of this project ends: the exit codes, errors meant for people, and the pod's termination message.

The codes are part of the interface. training-operator's `ExitCode` policy retries codes of 128 and above and gives up
on lower ones, so permanent failures end below 128.
"""

import contextlib
import ctypes
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

LAUNCHER = "TRAINYARD_LAUNCHER"  # process id of trainers.launch, for the processes that it starts
FINISHED_FIRST = "checkpoint"  # name of the threads whose work an ending process still lets finish
FINISH_SECONDS = 20.0
PR_SET_PDEATHSIG = 1  # linux/prctl.h
TERMINATION_LOG = "/dev/termination-log"


class Exit(IntEnum):
    """Exit codes; below 128 a retry does not help, from 128 on it may."""

    DONE = 0
    FAILED = 1
    CONFIG = 2
    NAN = 77
    HANG = 138
    STOPPED = 143


class UserError(Exception):
    """Wrong configuration or input. The message names the cause and the remedy; no traceback is shown."""


class InputError(UserError):
    """Input that is missing, refused or broken, which may be mended without a change of the settings."""


class ExitError(Exception):
    """A run that ends early for a known reason, with the exit code of that reason."""

    def __init__(self, message: str, code: int, details: dict[str, Any] | None = None) -> None:
        super().__init__(message, code, details)
        self.message = message
        self.code = int(code)
        self.details = details or {}

    def __str__(self) -> str:
        return self.message


# Controls but line breaks and tabs, and what reverses the direction of text
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text with characters that could steer a terminal as escapes: names in an archive are what strangers wrote."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def write_termination_message(message: str) -> None:
    """Leave the message where the kubelet looks for it; the first process of a container to do so wins.

    The file exists only inside a pod. It is never created here, so that a run as root outside a pod leaves no file
    in /dev.
    """
    path = Path(os.environ.get("TRAINYARD_TERMINATION_LOG", TERMINATION_LOG))
    with contextlib.suppress(OSError):
        if path.exists() and path.stat().st_size == 0:
            path.write_text(printable(message).strip()[-4000:] + "\n")


def fail(message: str, code: int = Exit.CONFIG) -> NoReturn:
    """Print the message to stderr, leave it as the termination message, and end with the code."""
    print(f"error: {printable(message)}", file=sys.stderr, flush=True)
    write_termination_message(message)
    sys.exit(int(code))


def end_on_failed_preflight() -> None:
    """End 2 with the preflight's message, where the init container of this pod left one.

    Operators look at a pod's main container alone, and would recreate a pod whose init container failed forever.
    """
    handover = os.environ.get("TRAINYARD_PREFLIGHT")
    if handover and Path(handover).exists():
        fail(Path(handover).read_text().strip(), Exit.CONFIG)


def die_with_launcher() -> None:
    """Make the kernel kill this process when the launcher that started it ends for any reason.

    A process without its launcher would keep its peers on other nodes waiting, and write beside its own successor.
    """
    launcher = int(os.environ.get(LAUNCHER, "0"))
    if launcher and os.getppid() == launcher:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != launcher:  # it died just before
            os.kill(os.getpid(), signal.SIGKILL)


def guarded(main: Callable[[], int]) -> NoReturn:
    """Run a program's main function and end the process with the exit code that its outcome asks for.

    The process leaves through `os._exit` after flushing: a rank whose peers have died may otherwise hang in the
    destructors of communication libraries, and its exit code would never be seen.
    """
    code = 0
    die_with_launcher()
    try:
        code = int(main())
    except UserError as error:
        code = _report(str(error), Exit.CONFIG)
    except ExitError as error:
        code = _report(str(error), error.code)
    except KeyboardInterrupt:
        code = _report("interrupted from the keyboard", 130)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        traceback.print_exc()
        code = _report(f"{type(error).__name__}: {error}", Exit.FAILED)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    for thread in threading.enumerate():
        if thread.name == FINISHED_FIRST:  # a checkpoint copied before a peer died is whole, and saves its steps
            thread.join(FINISH_SECONDS)
    os._exit(code)


def _report(message: str, code: int) -> int:
    """Show why the program ends and keep it for the kubelet."""
    print(f"error: {printable(message)}", file=sys.stderr, flush=True)
    write_termination_message(message)
    return int(code)
