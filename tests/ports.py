"""Ports that are this test's own: no other test gets them, and no connection takes one before it is used.

A port that the kernel chooses is anybody's again as soon as it is closed. These lie below those that it chooses from,
and below a cluster's NodePorts; each is locked by a file until this process ends, however that ends.
"""

import fcntl
import os
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path

FOLDER = Path(tempfile.gettempdir()) / f"trainyard-ports-{os.getuid()}"
PORTS = range(20_000, 30_000)

_held: list[ExitStack] = []


def free(number: int = 1) -> int:
    """Return the first of so many ports that follow each other, free on all addresses of this machine.

    Raises RuntimeError where none are left.
    """
    FOLDER.mkdir(exist_ok=True)
    for first in PORTS[: len(PORTS) - number + 1]:
        with ExitStack() as stack:
            if all(_take(port, stack) for port in range(first, first + number)):
                _held.append(stack.pop_all())
                return first
    raise RuntimeError(f"no {number} ports in a row are left of {PORTS.start} to {PORTS.stop - 1}")


def _take(port: int, stack: ExitStack) -> bool:
    """Lock a port unless somebody has locked it or uses it; the lock lasts as long as the stack."""
    file = stack.enter_context((FOLDER / str(port)).open("a"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket() as probe:
            probe.bind(("", port))
    except OSError:
        return False
    return True
