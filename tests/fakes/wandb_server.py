"""A server that answers a run's requests as Weights & Biases' does: GraphQL, the stream of lines, uploads."""

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.fakes import loopback


class Weights:
    """What the server has seen: keys, operations, and the rows of each run's history by its id."""

    def __init__(self) -> None:
        self.url = ""
        self.keys: set[str] = set()
        self.operations: list[str] = []
        self.history: dict[str, list[dict[str, Any]]] = {}
        self.down = False  # answers with this status while it is set
        self.status = 503
        self.refused = 0


class Handler(BaseHTTPRequestHandler):
    """Answers one client."""

    seen: Weights
    protocol_version = "HTTP/1.1"

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _answer(self, data: object, status: int = 200) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = self._body()
        if self.seen.down:
            self.seen.refused += 1
            self._answer({"error": "maintenance"}, self.seen.status)
            return
        if not self.path.endswith(("/graphql", "/file_stream")):
            self._answer({})
            return
        self.seen.keys.add(self.headers.get("Authorization", ""))
        if self.path.endswith("/file_stream"):
            self._stream(json.loads(body))
        else:
            self._graphql(json.loads(body))

    def do_PUT(self) -> None:
        self._body()
        self._answer({})

    def do_GET(self) -> None:
        self._answer({})

    def _stream(self, sent: dict[str, Any]) -> None:
        """Take in lines of a run's history."""
        run = self.path.split("/")[-2]
        rows = self.seen.history.setdefault(run, [])
        lines = sent.get("files", {}).get("wandb-history.jsonl", {})
        for number, line in enumerate(lines.get("content", [])):
            place = int(lines["offset"]) + number
            rows[place : place + 1] = [json.loads(line)]
        self._answer({"exitcode": None, "limits": {}})

    def _graphql(self, sent: dict[str, Any]) -> None:
        query, given = sent["query"], sent.get("variables") or {}
        self.seen.operations.append(sent.get("operationName") or query.split("(")[0].split("{")[0].strip())
        entity = {"id": "team", "name": "team"}
        project = {"id": "project", "name": given.get("project") or given.get("name") or "p", "entity": entity}
        if "upsertBucket" in query:
            name = given.get("name") or given.get("bucket") or given.get("id")
            bucket = {"id": "bucket", "name": name, "displayName": given.get("displayName") or name, "description": "",
                      "config": "{}", "sweepName": None, "project": project, "historyLineCount": 0}  # fmt: skip
            self._answer({"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}})
        elif "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.seen.url}/upload/{name}"} for name in given.get("files", [])]
            self._answer({"data": {"createRunFiles": {"runID": "bucket", "uploadHeaders": [], "files": files}}})
        elif "viewer" in query:
            viewer = {"id": "ada", "entity": "team", "username": "ada", "name": "ada", "email": "", "flags": "{}",
                      "admin": False, "teams": {"edges": []}, "apiKeys": {"edges": []}}  # fmt: skip
            self._answer({"data": {"viewer": viewer, "serverInfo": None}})
        elif "bucket" in query:
            self._answer({"data": {"model": project | {"bucket": None}}})
        else:
            self._answer(
                {"data": {"serverInfo": {"features": [], "cliVersionInfo": None, "latestLocalVersionInfo": None}}}
            )

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def running() -> Iterator[Weights]:
    """Run the server on a free port of loopback."""
    seen = Weights()
    with loopback.serving(type("Own", (Handler,), {"seen": seen})) as server:
        server.handle_error = lambda *_: None  # a client that leaves
        seen.url = f"http://127.0.0.1:{server.server_port}"
        yield seen
