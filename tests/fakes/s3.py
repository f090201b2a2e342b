"""An S3-compatible store on loopback: moto's server, which wants a known access key here and can be made to fail."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

REGION, KEY, SECRET = "eu-central-1", "AKIDLITTLE", "s3cret/acc3ss+key"
_XML = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>no</Message></Error>"


@dataclass
class Store:
    """A running store: its address, a client with all rights, and the reads so far."""

    url: str
    client: Any
    public: bool = False
    requests: list[tuple[str, str]] = field(default_factory=list)
    # Told each read's number and request; returns status and error code to refuse it with, or nothing
    fault: Callable[[int, dict[str, Any]], tuple[str, str] | None] = lambda number, request: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def refuses(self, request: dict[str, Any]) -> tuple[str, str] | None:
        """Return why this request is refused."""
        if not self.public and f"Credential={KEY}/" not in request.get("HTTP_AUTHORIZATION", ""):
            return "403 Forbidden", "InvalidAccessKeyId"
        if request["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return None
        with self.lock:
            self.requests.append((request["REQUEST_METHOD"], request.get("HTTP_RANGE", "")))
            number = len(self.requests)
        return self.fault(number, request)


@contextmanager
def running() -> Iterator[Store]:
    """Run the store on a free port while the block runs."""
    import boto3  # imported late, as each worker that collects tests would take a second
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=url, region_name=REGION, aws_access_key_id=KEY, aws_secret_access_key=SECRET
    )
    store, inner = Store(url, client), server._server.app

    def app(request: dict[str, Any], start: Any) -> Any:
        if refusal := store.refuses(request):
            body = b"" if request["REQUEST_METHOD"] == "HEAD" else _XML % refusal[1].encode()
            start(refusal[0], [("Content-Length", str(len(body))), ("Content-Type", "application/xml")])
            return [body]
        return inner(request, start)

    server._server.app = app
    try:
        yield store
    finally:
        server.stop()
