"""A pod's answer to its peers on one port, for as long as its process lives: that it is there, and what it does."""

import contextlib
import os
import re
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Literal, get_args

from trainyard.core.exits import UserError

PROBE_SECONDS = 3.0
NO_NAME = "its name does not resolve: the pod has not started"
# What a pod tells those that ask: it waits for peers; all required ones answer; torch is loaded, the group forms now;
# the group has formed, and trains
State = Literal["waits", "ready", "loaded", "trains"]
LOADED: tuple[State, ...] = ("loaded", "trains")
GREETING = re.compile(r"trainyard (\S+) (\w+) ([0-9.]+)\n")  # the job, the pod's state, and the time by its clock


class Listener:
    """Answers peers for as long as the process lives, since a peer may come late."""

    def __init__(self, job: str, port: int, host: str = "") -> None:
        self.state: State = "waits"
        self._job = job
        try:
            self._socket = listen(port, host)
        except OSError as error:
            raise UserError(
                f"port {port} cannot be listened on here ({explain(error)}): set another global.training.peers.port"
            ) from None
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True, name="preflight").start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.sendall(_greeting(self._job, self.state))
                except OSError:
                    continue

    def close(self) -> None:
        """Stop listening; otherwise the thread that waits in accept() would keep the port."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@dataclass
class Peer:
    """The state of a peer: why it does not answer (empty: it does), its state, address, since when, and its clock."""

    why: str = "not asked yet"
    state: State = "waits"
    address: str = ""
    since: float = field(default_factory=time.monotonic)
    ahead: float = 0.0  # seconds by which its clock is ahead of this one


def ask(name: str, port: int, job: str, before: Peer) -> Peer:
    """Ask a peer whether it is there."""
    try:
        address = str(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return Peer(NO_NAME)
    since = before.since if address == before.address else time.monotonic()
    begun = time.time()
    try:
        with socket.create_connection((address, port), PROBE_SECONDS) as connection:
            connection.settimeout(PROBE_SECONDS)
            try:
                said = connection.recv(256)
            except TimeoutError:  # a process that is stopped, or what stands before it
                return Peer("it accepts, but says nothing", address=address, since=since)
    except TimeoutError:
        return Peer("no answer", address=address, since=since)
    except OSError as error:
        return Peer(explain(error), address=address, since=since)
    found = GREETING.fullmatch(said.decode(errors="replace"))
    for state in get_args(State):
        if found and found.group(1, 2) == (job, state):
            theirs = float(found[3])
            return Peer("", state, address, since, theirs - min(max(theirs, begun), time.time()))
    return Peer("something else answers", address=address, since=since)


def listen(port: int, host: str = "") -> socket.socket:
    """Listen on all addresses, of IPv6 too where there is any, or on one."""
    if host:
        return socket.create_server((host, port), backlog=1024)
    try:
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    except (OSError, ValueError):
        # no IPv6 here
        return socket.create_server(("", port), backlog=1024)


def explain(error: OSError) -> str:
    """Return what a failed connection is said to be."""
    return os.strerror(error.errno).lower() if error.errno else "no answer"


def _greeting(job: str, state: State) -> bytes:
    return f"trainyard {job} {state} {time.time():.3f}\n".encode()
