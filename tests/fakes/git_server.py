"""A real git repository over HTTP on loopback, to clone from: git itself answers, by its smart protocol."""

import gzip
import subprocess
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.fakes import loopback

SERVICE = "git-upload-pack"
FIRST = b"001e# service=git-upload-pack\n0000"  # of the answer that lists branches and tags


def serving(repository: Path) -> AbstractContextManager[ThreadingHTTPServer]:
    """Serve a repository, whatever its URL's path, while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith(f"/info/refs?service={SERVICE}"):
                self.answer("advertisement", FIRST + self.git("--http-backend-info-refs"))
            else:
                self.send_error(404)

        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                asked = gzip.decompress(asked)
            self.answer("result", self.git(stdin=asked))

        def git(self, *options: str, stdin: bytes = b"") -> bytes:
            command = ["git", "upload-pack", "--stateless-rpc", *options, str(repository)]
            return subprocess.run(command, input=stdin, stdout=subprocess.PIPE, check=True).stdout

        def answer(self, what: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", f"application/x-{SERVICE}-{what}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    return loopback.serving(Handler)
