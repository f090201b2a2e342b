"""Ports that are this test's own: no other test gets them, and no connection takes one before it is used.

A port that the kernel chooses is anybody's again as soon as it is closed. These lie below those that it chooses from,
and below a cluster's NodePorts. Each is locked until this process ends, however that ends, by a socket whose abstract
name (unix(7)) has the port: such names are those of the network, as ports are, whichever user runs the tests, and
whatever its TMPDIR.
"""

import socket
from contextlib import ExitStack

PORTS = range(20_000, 30_000)

_held: list[ExitStack] = []


def free(number: int = 1) -> int:
    """Return the first of so many ports that follow each other, free on all addresses of this machine.

    Raises RuntimeError where none are left.
    """
    for first in PORTS[: len(PORTS) - number + 1]:
        with ExitStack() as stack:
            if all(_take(port, stack) for port in range(first, first + number)):
                _held.append(stack.pop_all())
                return first
    raise RuntimeError(f"no {number} ports in a row are left of {PORTS.start} to {PORTS.stop - 1}")


def _take(port: int, stack: ExitStack) -> bool:
    """Lock a port unless somebody has locked it or uses it; the lock lasts as long as the stack."""
    lock = stack.enter_context(socket.socket(socket.AF_UNIX))
    try:
        lock.bind(f"\0trainyard-port-{port}")
        with socket.socket() as probe:
            probe.bind(("", port))
    except OSError:
        return False
    return True
