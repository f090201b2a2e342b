"""Serves one file over HTTP as if from far away.

Each answer begins one round trip late, and each connection sends no more than one window per round trip. Some answers
to requests for a range are broken off by a reset in the middle of their body.

python benchmarks/cpu/longpipe.py FILE [--round-trip 0.05] [--window 524288] [--reset-every 50]

Prints its port, then serves until it is ended. The window is what bounds one connection on a long fat pipe: its speed
is window / round trip (RFC 7323, section 1.1). Slow start is not imitated: every connection has its whole window at
once, which favours few connections over many.
"""

import argparse
import itertools
import os
import re
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_RANGE = re.compile(r"bytes=(\d+)-(\d*)$")
_RESET = struct.pack("ii", 1, 0)


class FarHandler(BaseHTTPRequestHandler):
    """Answers ranges of the one file, slowly."""

    protocol_version = "HTTP/1.1"
    path_served: Path
    round_trip: float
    window: int
    reset_every: int
    numbers = itertools.count(1)
    lock = threading.Lock()

    def do_GET(self) -> None:
        """Send a range, or the whole file."""
        size = self.path_served.stat().st_size
        match = _RANGE.match(self.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        stop = min(int(match[2]) + 1, size) if match and match[2] else size
        time.sleep(self.round_trip)
        self.send_response(206 if match else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", '"one"')
        if match:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.end_headers()
        broken = bool(match and self.reset_every) and self._count() % self.reset_every == 0
        self._send(start, (start + stop) // 2 if broken else stop)
        if broken:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.connection.close()
            self.close_connection = True

    def _count(self) -> int:
        with self.lock:
            return next(self.numbers)

    def _send(self, at: int, stop: int) -> None:
        with self.path_served.open("rb") as file:
            while at < stop:
                began, sent = time.monotonic(), 0
                while at < stop and sent < self.window:
                    count = os.sendfile(self.connection.fileno(), file.fileno(), at, min(stop - at, self.window - sent))
                    at, sent = at + count, sent + count
                if at < stop:
                    time.sleep(max(0.0, self.round_trip - (time.monotonic() - began)))

    def log_message(self, *args: object) -> None:
        """Say nothing."""


class FarServer(ThreadingHTTPServer):
    """Ignore connections that a client closes."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description="Serve a file as if it lay far away.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--round-trip", type=float, default=0.05)
    parser.add_argument("--window", type=int, default=512 << 10)
    parser.add_argument("--reset-every", type=int, default=50)
    parser.add_argument("--bind", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    FarHandler.path_served, FarHandler.round_trip = options.file, options.round_trip
    FarHandler.window, FarHandler.reset_every = options.window, options.reset_every
    server = FarServer((options.bind, options.port), FarHandler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
