"""A real nginx on loopback, which writes only to its own folder."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import patience, ports

_CONFIG = """\
daemon off;
{user}
pid {home}/nginx.pid;
error_log {home}/error.log warn;
worker_processes 1;
events {{ worker_connections 256; }}
http {{
  access_log {home}/access.log;
  client_body_temp_path {home}/body; proxy_temp_path {home}/proxy; fastcgi_temp_path {home}/fastcgi;
  uwsgi_temp_path {home}/uwsgi; scgi_temp_path {home}/scgi;
  limit_req_zone $binary_remote_addr zone=slow:1m rate=10r/s;
  server {{
    listen 127.0.0.1:{port};
    root {folder};
    location /whole/ {{ alias {folder}/; max_ranges 0; }}
    location /moved/ {{ rewrite ^/moved/(.*)$ /$1?X-Signature=secret redirect; }}
    location /closed/ {{ alias {folder}/; deny all; }}
    location /busy/ {{ alias {folder}/; limit_req zone=slow; limit_req_status 429; }}
  }}
}}
"""


class Nginx:
    """A server that can be stopped and started again on the same port."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.home = home
        self.port = ports.free()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        user = "user root;" if os.getuid() == 0 else ""
        (home / "nginx.conf").write_text(_CONFIG.format(user=user, home=home, folder=folder, port=self.port))

    def start(self) -> None:
        """Start it and wait until it answers."""
        process = subprocess.Popen([_program(), "-p", self.home, "-c", self.home / "nginx.conf"])
        self._process = process

        def answers() -> bool:
            assert process.poll() is None, (self.home / "error.log").read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        patience.wait("nginx does not listen", answers, lambda: patience.processor_seconds(process.pid))

    def stop(self) -> None:
        """Stop it at once, whatever it is sending."""
        if self._process:
            self._process.terminate()
            self._process.wait()

    def log(self) -> str:
        """Return the access log so far."""
        return (self.home / "access.log").read_text()


@contextmanager
def running(folder: Path, home: Path) -> Iterator[Nginx]:
    """Serve the folder while the block runs."""
    server = Nginx(folder, home)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _program() -> str:
    cache = Path(os.environ.get("TRAINYARD_CACHE") or Path.home() / ".cache/trainyard")
    unpacked = cache / "nginx/usr/sbin/nginx"
    if program := str(unpacked) if unpacked.exists() else shutil.which("nginx"):
        return program
    raise RuntimeError("nginx is missing: run hack/bootstrap servers")
