"""A real HTTP server on a free port of loopback."""

import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """A server that prints nothing about clients that hang up: a test may read what is printed."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[ThreadingHTTPServer]:
    """Let a server answer while the block runs; then close it."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def serving(handler: type[BaseHTTPRequestHandler]) -> AbstractContextManager[ThreadingHTTPServer]:
    """Answer requests by this handler; `server_port` of what is yielded is the port."""
    return running(Server(("127.0.0.1", 0), handler))
