"""A real network file system on loopback: GlusterFS's server and its FUSE mount, and between them and programs a second
mount that fails, delays and holds calls (faulty_fs.py).

    brick  the server's folder on this machine's disk, which can always be looked at
    mount  what the network client mounts
    path   what programs get: `mount`, with faults

Nothing in this process may touch `mount` or `path` while the server is stopped: such a call cannot be interrupted, and
nobody would be left to wake the server up. Look at `brick`.
"""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests import patience, ports

HERE = Path(__file__).parent
SERVER = """\
volume brick
  type storage/posix
  option directory {brick}
end-volume
volume locks
  type features/locks
  subvolumes brick
end-volume
volume server
  type protocol/server
  option transport-type tcp
  option transport.socket.bind-address 127.0.0.1
  option transport.socket.listen-port {port}
  option auth.addr.locks.allow 127.0.0.1
  subvolumes locks
end-volume
"""
# What Gluster's own volumes have: without write-behind and read-ahead, which would hide failed calls. Without its
# ping-timeout of 42 s, too: after that calls to a server that is stopped would fail, and hang no more
CLIENT = """\
volume client
  type protocol/client
  option transport-type tcp
  option remote-host 127.0.0.1
  option remote-port {port}
  option remote-subvolume locks
  option ping-timeout 0
end-volume
"""
# The kernel ends it with this process, whatever becomes of that
WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]


class NetworkFolder:
    """The file system, its processes and its faults."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.brick, self.mount, self.path = (home / name for name in ("brick", "mount", "faulty"))
        for folder in (self.brick, self.mount, self.path):
            folder.mkdir()
        self._port = ports.free()
        (home / "server.vol").write_text(SERVER.format(brick=self.brick, port=self._port))
        (home / "client.vol").write_text(CLIENT.format(port=self._port))
        self._server: subprocess.Popen[bytes] | None = None
        self._said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._held: queue.SimpleQueue[str] = queue.SimpleQueue()

    @contextmanager
    def mounted(self) -> Iterator["NetworkFolder"]:
        """Serve and mount while the block runs; all of it is gone afterwards, hung calls too."""
        with ExitStack() as stack:
            stack.callback(self.kill_server)
            self.start_server()
            # Undone in reverse: first the client, so that every hung call returns an error; then what used it
            stack.callback(lambda: unmount(self.mount))
            client = self._client(self.mount)
            self._faulty = subprocess.Popen(
                [*WITH_PARENT, sys.executable, HERE / "faulty_fs.py", self.mount, self.path], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env={**os.environ, "FUSE_LIBRARY_NAME": "fuse3"},
            )  # fmt: skip
            stack.callback(lambda: (unmount(self.path), end(self._faulty)))
            stack.callback(lambda: end(client))
            threading.Thread(target=self._listen, daemon=True).start()
            self._wait_for_mount(self.path, self._faulty)
            yield self

    @contextmanager
    def mounted_again(self) -> Iterator[Path]:
        """The same export as another node sees it: through a client of its own, with its own caches, without faults."""
        other = self.home / "other"
        other.mkdir()
        client = self._client(other)
        try:
            yield other
        finally:
            end(client)
            unmount(other)

    def start_server(self) -> None:
        """Start the server, and wait until it listens."""
        server = self._server = self._gluster("server", "server")

        def listens() -> bool:
            assert server.poll() is None, (self.home / "server.log").read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self._port)) == 0

        patience.wait("the server does not listen", listens, lambda: patience.processor_seconds(server.pid))

    def kill_server(self) -> None:
        """Kill the server; calls fail with ENOTCONN until another is started."""
        if self._server is not None:
            end(self._server)

    def settle(self) -> None:
        """Wait until calls succeed again after a fault."""
        self.tell(fail=None, delay=0, release=True)

        def works() -> bool:
            with suppress(OSError):
                return self.path.is_dir() and bool(list(self.path.iterdir()) or True)
            return False

        patience.wait(f"{self.path} does not work again", works, patience.still)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the server while the block runs: every call hangs, and cannot be interrupted."""
        server = self._server
        assert server is not None
        server.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            server.send_signal(signal.SIGCONT)

    def tell(self, **command: Any) -> dict[str, Any]:
        """Give the faulty file system a command (faulty_fs.py); returns its answer."""
        assert self._faulty.stdin is not None
        self._faulty.stdin.write(json.dumps(command) + "\n")
        self._faulty.stdin.flush()
        return self._said.get(timeout=patience.IDLE)

    def held_call(self, ended: Callable[[], bool]) -> str:
        """Wait until a call is held (`tell(hold=...)`), and name it; empty if `ended` comes true before."""
        while True:
            with suppress(queue.Empty):
                return self._held.get(timeout=0.1)
            if ended():
                return ""

    def _listen(self) -> None:
        assert self._faulty.stdout is not None
        for line in self._faulty.stdout:
            answer = json.loads(line)
            self._held.put(answer["held"]) if "held" in answer else self._said.put(answer)

    def _client(self, place: Path) -> "subprocess.Popen[bytes]":
        """Mount the export."""
        # No cache of content, which would answer for a server that is stopped
        options = ["--attribute-timeout=1", "--entry-timeout=1", "--direct-io-mode=enable"]
        client = self._gluster("client", place.name, *options, str(place))
        self._wait_for_mount(place, client)
        return client

    def _gluster(self, part: str, name: str, *options: str) -> "subprocess.Popen[bytes]":
        program = "glusterfsd" if part == "server" else "glusterfs"
        home = self.home
        return subprocess.Popen(
            [*WITH_PARENT, program, "-N", "-f", home / f"{part}.vol", "-l", home / f"{name}.log",
             "-p", home / f"{name}.pid", *options],
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def _wait_for_mount(self, place: Path, process: "subprocess.Popen[Any]") -> None:
        def is_mounted() -> bool:
            logs = "".join(path.read_text() for path in self.home.glob("*.log"))
            assert process.poll() is None, f"{place} was not mounted: {logs}"
            return str(place) in Path("/proc/self/mountinfo").read_text().split()

        patience.wait(f"{place} is not mounted", is_mounted, lambda: patience.processor_seconds(process.pid))


@contextmanager
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkFolder]:
    """The file system, while the block runs."""
    with NetworkFolder(tmp_path_factory.mktemp("netfs")).mounted() as folder:
        yield folder


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkFolder]:
    """The file system, mounted for the tests of a file."""
    with served(tmp_path_factory) as folder:
        yield folder


def end(process: "subprocess.Popen[Any]") -> None:
    process.kill()
    process.wait()


def unmount(place: Path) -> None:
    """Take a mount away from under whoever uses it."""
    subprocess.run(["umount", "-l", place], check=False, capture_output=True)
