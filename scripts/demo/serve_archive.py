#!/usr/bin/env python3
"""A small HTTP server for one folder that answers range requests, from the standard library alone.

scripts/demo/serve_archive.py FOLDER [--port 8000] [--bind 0.0.0.0]

It serves the demo's archive inside the cluster, in a pod that has nothing but Python.
"""

import argparse
import contextlib
import email.utils
import os
import re
import signal
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

CHUNK = 1 << 20


class RangeHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for the files of `folder`, whole or one range of bytes."""

    protocol_version = "HTTP/1.1"
    folder = Path()
    # A header and a body sent apart would wait for each other's acknowledgement
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer with the file or the range."""
        self.answer(body=True)

    def do_HEAD(self) -> None:
        """Answer with the headers alone."""
        self.answer(body=False)

    def answer(self, *, body: bool) -> None:
        """Find the file and the range, and send them."""
        path = self.find()
        if path is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            part = parse_range(self.headers.get("Range"), facts.st_size)
            if part is None:
                self.send_response(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
                self.send_header("Content-Range", f"bytes */{facts.st_size}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start, length = part
            ranged = "Range" in self.headers
            self.send_response(HTTPStatus.PARTIAL_CONTENT if ranged else HTTPStatus.OK)
            if ranged:
                self.send_header("Content-Range", f"bytes {start}-{start + length - 1}/{facts.st_size}")
            self.send_header("Content-Length", str(length))
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", f'"{facts.st_mtime_ns:x}-{facts.st_size:x}"')
            self.send_header("Last-Modified", email.utils.formatdate(facts.st_mtime, usegmt=True))
            self.end_headers()
            if body:
                file.seek(start)
                self.send_part(file, length)

    def find(self) -> Path | None:
        """Return the file that the address names, if it lies in the folder."""
        root = self.folder.resolve()
        path = (root / unquote(urlsplit(self.path).path).lstrip("/")).resolve()
        return path if path.is_relative_to(root) and path.is_file() else None

    def send_part(self, file: BinaryIO, length: int) -> None:
        """Send so many bytes from where the file stands."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while length > 0 and (chunk := file.read(min(CHUNK, length))):
                self.wfile.write(chunk)
                length -= len(chunk)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Keep quiet about what went well; there are thousands of ranges."""


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return start and length; None when the range lies outside. Several ranges at once are answered as the whole."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header or "")
    if not match or match[0] == "bytes=-":
        return 0, size
    if not match[1]:
        start = max(0, size - int(match[2]))
        return (start, size - start) if int(match[2]) and size else None
    start, end = int(match[1]), min(int(match[2]) if match[2] else size - 1, size - 1)
    return (start, end - start + 1) if start <= end else None


def make_server(folder: Path, bind: str, port: int, handler: type[RangeHandler] = RangeHandler) -> ThreadingHTTPServer:
    """Make the server; port 0 chooses a free one."""
    server = ThreadingHTTPServer((bind, port), type("Handler", (handler,), {"folder": folder}))
    server.daemon_threads = True
    return server


def main() -> int:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description="Serve one folder over HTTP with range requests.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bind", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    if not options.folder.is_dir():
        print(f"error: {options.folder} is no folder; name one to serve", file=sys.stderr)
        return 2
    try:
        server = make_server(options.folder, options.bind, options.port)
    except OSError as error:
        print(
            f"error: cannot listen on {options.bind}:{options.port}: {error.strerror}; choose another --port",
            file=sys.stderr,
        )
        return 2
    # As a container's first process, SIGTERM would otherwise be ignored
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"serving {options.folder} on {options.bind}:{server.server_address[1]}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
