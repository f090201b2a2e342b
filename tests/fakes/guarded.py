"""Servers that need a login: HTTPS with a private authority, a proxy and a web server with passwords."""

import base64
import contextlib
import datetime
import ipaddress
import select
import socket
import ssl
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests import patience
from tests.fakes import files, loopback


def authority(folder: Path) -> tuple[Path, Path]:
    """Make a private authority and a certificate of it for 127.0.0.1; the authority's, and the server's with key."""
    now = datetime.datetime.now(datetime.UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("company root", "files")]

    def certificate(index: int, *extensions: x509.ExtensionType) -> x509.Certificate:
        builder = x509.CertificateBuilder().subject_name(names[index]).issuer_name(names[0])
        builder = builder.public_key(keys[index].public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(keys[0], hashes.SHA256())

    own = x509.SubjectKeyIdentifier.from_public_key(keys[0].public_key())
    root = certificate(0, x509.BasicConstraints(ca=True, path_length=None), own)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)
    leaf = certificate(1, x509.BasicConstraints(ca=False, path_length=None), address, signer)
    pem, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    key = keys[1].private_bytes(pem, plain, serialization.NoEncryption())
    folder.mkdir(exist_ok=True)
    (folder / "root.pem").write_bytes(root.public_bytes(pem))
    (folder / "server.pem").write_bytes(leaf.public_bytes(pem) + key)
    return folder / "root.pem", folder / "server.pem"


@contextmanager
def https(folder: Path, certificate: Path) -> Iterator[files.FileServer]:
    """Serve a folder over HTTPS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with files.running(folder, tls=context) as control:
        yield control


def login(user: str, password: str) -> str:
    """The header's value with a user's name and password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class PasswordHandler(files.FaultyHandler):
    """Answers only requests with the right password."""

    wanted = ""

    def answer(self, *, body: bool) -> None:
        if self.headers.get("Authorization") == self.wanted:
            super().answer(body=body)
        else:
            self.refuse(401, WWW_Authenticate='Basic realm="files"')


class Proxy(BaseHTTPRequestHandler):
    """A forward proxy: tunnels for https, and passes on what is asked for by http; only for those with the password.

    `cuts` says, by the number of a connection or request from 1 on, after how many bytes of the answer it is cut.
    """

    wanted = ""
    seen: list[str]
    cuts: Callable[[int], int | None]
    protocol_version = "HTTP/1.1"

    def _known(self) -> bool:
        self.seen.append(f"{self.command} {self.path}")
        if self.headers.get("Proxy-Authorization") == self.wanted:
            return True
        self.send_response(407)
        self.send_header("Proxy-Authenticate", 'Basic realm="proxy"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return False

    def do_CONNECT(self) -> None:
        if not self._known():
            return
        host, _, port = self.path.rpartition(":")
        left = self.cuts(len(self.seen))
        with socket.create_connection((host, int(port))) as far:
            self.send_response(200)
            self.end_headers()
            ends = {self.connection: far, far: self.connection}
            while True:
                for one in select.select(list(ends), [], [])[0]:
                    data = one.recv(1 << 16)
                    if one is far and left is not None:
                        data = data[:left]
                        left -= len(data)
                    if data:
                        ends[one].sendall(data)
                    if not data or left == 0:  # who waits for the rest would wait for its own timeout
                        self._hang_up()
                        return

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):  # the client was faster
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        if not self._known():
            return
        headers = {name: self.headers[name] for name in ("Range", "Accept-Encoding") if name in self.headers}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(self.path, headers=headers), timeout=patience.IDLE) as answer:
            body, most = answer.read(), self.cuts(len(self.seen))
            self.send_response(answer.status)
            for name in ("Content-Range", "ETag", "Last-Modified"):
                if name in answer.headers:
                    self.send_header(name, answer.headers[name])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:most])
            if most is not None and most < len(body):
                self.wfile.flush()
                self._hang_up()

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def proxy(
    user: str, password: str, cuts: Callable[[int], int | None] = lambda number: None
) -> Iterator[tuple[str, list[str]]]:
    """Run the proxy on loopback; its address, and what was asked of it."""
    seen: list[str] = []
    handler = type("Handler", (Proxy,), {"wanted": login(user, password), "seen": seen, "cuts": staticmethod(cuts)})
    with loopback.serving(handler) as server:
        yield f"127.0.0.1:{server.server_port}", seen
