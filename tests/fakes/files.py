"""A real HTTP server for one folder, with faults on request: throttling, resets, short answers, no ranges, changes."""

import importlib.util
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests import patience
from tests.fakes import loopback

_SCRIPT = Path(__file__).parents[2] / "scripts/demo/serve_archive.py"
_spec = importlib.util.spec_from_file_location("serve_archive", _SCRIPT)
serve_archive = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(serve_archive)


class FileServer:
    """What a test sees of a running server: its address, the requests so far, and the fault to inject.

    `fault(number, handler)` is called for each request, counted from 1; it returns True when it has answered itself.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[tuple[str, str]] = []
        self.fault: Callable[[int, Any], bool] = lambda number, handler: False
        self.delay = 0.0
        self.holding: list[threading.Event] = []
        self.lock = threading.Lock()
        self.server: ThreadingHTTPServer | None = None

    def hold(self, when: Callable[[int], object]) -> threading.Event:
        """Answer requests, by their number, for which this is true, only once the returned event is set."""
        released = threading.Event()
        self.holding.append(released)

        def fault(number: int, handler: Any) -> bool:
            if when(number):
                assert released.wait(patience.IDLE), "nobody releases the request"
            return False

        self.fault = fault
        return released

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


class FaultyHandler(serve_archive.RangeHandler):
    control: FileServer

    def answer(self, *, body: bool) -> None:
        control = self.control
        with control.lock:
            control.requests.append((self.path, self.headers.get("Range", "")))
            number = len(control.requests)
        if control.delay:
            time.sleep(control.delay)
        if not control.fault(number, self):
            super().answer(body=body)

    def log_message(self, *args: object) -> None:
        pass

    def refuse(self, status: int, **headers: str) -> bool:
        """Answer with a status and nothing else."""
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        return True

    def reset(self) -> bool:
        """Break the connection off, as a failing network does."""
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()
        self.close_connection = True
        return True

    def send_half(self) -> bool:
        """Send the right headers and half of the body, then close."""
        self.send_part = self._half
        self.close_connection = True
        return False

    def _half(self, file: Any, length: int) -> None:
        self.wfile.write(file.read(length // 2))
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def running(
    folder: Path, handler: type = FaultyHandler, tls: ssl.SSLContext | None = None, **attributes: object
) -> Iterator[FileServer]:
    """Serve a folder on a free port of loopback while the block runs, with `tls` over HTTPS."""
    control = FileServer(folder)
    kind = type("Handler", (handler,), {"control": control, **attributes})
    server = serve_archive.make_server(folder, "127.0.0.1", 0, kind)
    server.handle_error = lambda *args: None
    if tls is not None:  # before it serves: the thread that does must find the socket
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    control.server = server
    with loopback.running(server):
        try:
            yield control
        finally:
            for released in control.holding:
                released.set()
