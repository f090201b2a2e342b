"""An API server on loopback for lists, watches and logs, whose objects a test changes, and which fails on request.

It speaks the protocol of https://kubernetes.io/docs/reference/using-api/api-concepts: versions, watches that continue
from a version, bookmarks, 410 for a version that is too old, refusals as Status objects.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

END = "0\r\n\r\n"  # of a body in chunks
GROUPS = {"kubeflow.org": {"v2beta1": ["mpijobs"], "v1": ["pytorchjobs"]}}  # the preferred version first


class Cluster:
    """What a test sees of a running server: its objects, their logs, and the requests so far."""

    def __init__(self) -> None:
        self.url = ""
        self.objects: dict[str, dict[str, dict]] = {}  # by plural and name
        self.logs: dict[str, str] = {}  # by pod; a reader that follows one gets what is added until the pod is `over`
        self.over: set[str] = set()
        self.requests: list[tuple[str, dict[str, str]]] = []  # path and query
        self.tokens: set[str] = set()  # who is let in; everybody when it is empty
        # Told each request's path and query; returns status and message to refuse it with, or nothing
        self.fault: Callable[[str, dict[str, str]], tuple[int, str] | None] = lambda path, query: None
        self.history: list[tuple[int, str, str, dict]] = []  # version, plural, ADDED and the like, object
        self.version, self.oldest, self.epoch = 1, 0, 0
        self.change = threading.Condition()

    def put(self, plural: str, thing: dict) -> None:
        """Create or change an object."""
        with self.change:
            known = thing["metadata"]["name"] in self.objects.setdefault(plural, {})
            self.version += 1
            meta = thing["metadata"] | {"resourceVersion": str(self.version)}
            thing = thing | {"metadata": meta}
            self.objects[plural][meta["name"]] = thing
            self.history.append((self.version, plural, "MODIFIED" if known else "ADDED", thing))
            self.change.notify_all()

    def drop(self, plural: str, name: str) -> None:
        """Delete an object."""
        with self.change:
            self.version += 1
            thing = self.objects[plural].pop(name)
            meta = thing["metadata"] | {"resourceVersion": str(self.version)}
            self.history.append((self.version, plural, "DELETED", thing | {"metadata": meta}))
            self.change.notify_all()

    def cut(self) -> None:
        """Break all watches off in the middle of a line."""
        with self.change:
            self.epoch += 1
            self.change.notify_all()

    def forget(self) -> None:
        """Forget all changes so far: a watch from before gets a 410."""
        with self.change:
            self.oldest, self.history = self.version, []

    def count(self, plural: str, watches: bool) -> int:
        """Return how often a kind was listed, or watched."""
        return sum(path.endswith(f"/{plural}") and ("watch" in query) == watches for path, query in self.requests)

    def kubeconfig(self, file: Path, server: str = "", user: dict | None = None, **more: Any) -> Path:
        """Write a kubeconfig of this server; `more` is of its cluster's entry."""
        parts = {
            "clusters": [{"name": "c", "cluster": {"server": server or self.url, **more}}],
            "users": [{"name": "u", "user": user or {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }
        file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "x", **parts}))
        return file


def stamp(line: int) -> str:
    """Return the time of a log's line: one a second."""
    return f"2026-11-21T12:{line // 60:02d}:{line % 60:02d}.000000000Z"


def matches(thing: dict, query: dict[str, str]) -> bool:
    """Whether an object has the labels, the name and the namespace that a request selects by.

    An object without a namespace is in all of them.
    """
    if query.get("namespace", "") not in ("", thing["metadata"].get("namespace", query.get("namespace"))):
        return False
    labels = thing["metadata"].get("labels", {})
    wanted = [part.partition("=") for part in query.get("labelSelector", "").split(",") if part]
    name = query.get("fieldSelector", "").removeprefix("metadata.name=")
    chosen = all(labels.get(key) == value if sign else key in labels for key, sign, value in wanted)
    return chosen and name in ("", thing["metadata"]["name"])


def lines_of(text: str, first: int, query: dict[str, str]) -> Iterator[str]:
    """Yield the lines of a log from a number on, later than sinceTime, as a request asks for them."""
    for number, line in enumerate(text.splitlines(True)):
        if number >= first and stamp(number)[:19] >= query.get("sinceTime", "")[:19]:
            yield f"{stamp(number)} {line}" if "timestamps" in query else line


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def log_message(self, *args: Any) -> None:
        """Stay quiet."""

    def answer(self, body: dict | str, status: int = 200) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if isinstance(body, dict) else "text/plain")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: int, message: str) -> None:
        self.answer({"kind": "Status", "apiVersion": "v1", "code": status, "message": message}, status)

    def do_GET(self) -> None:
        cluster, where = self.server.cluster, urlsplit(self.path)  # a proxy is asked for the whole address
        self.epoch = cluster.epoch  # before the request is counted and a fault is asked for: a later cut breaks it off
        query = {key: values[-1] for key, values in parse_qs(where.query).items()}
        cluster.requests.append((where.path, query))
        known = not cluster.tokens or self.headers.get("Authorization", "").removeprefix("Bearer ") in cluster.tokens
        refusal = cluster.fault(where.path, query) if known else (401, "Unauthorized")
        parts = where.path.strip("/").split("/")
        if refusal:
            self.refuse(*refusal)
        elif parts[-1] == "log":
            self.log(parts[-2], query)
        elif parts[:3] == ["api", "v1", "nodes"] and len(parts) == 4:
            node = cluster.objects.get("nodes", {}).get(parts[3])
            self.answer(node) if node else self.refuse(404, f'nodes "{parts[3]}" not found')
        elif parts[0] == "apis" and len(parts) <= 3:
            self.discover(*parts[1:])
        elif len(parts) < 3 or (parts[0] == "apis" and not self.serves(parts)):
            self.refuse(404, "the server could not find the requested resource")
        else:
            inside = {"namespace": parts[parts.index("namespaces") + 1]} if "namespaces" in parts else {}
            (self.watch if "watch" in query else self.show)(parts[-1], query | inside)

    def log(self, pod: str, query: dict[str, str]) -> None:
        cluster = self.server.cluster
        text = cluster.logs.get(pod)
        if text is None:
            return self.refuse(400, f'container "x" in pod "{pod}" is waiting to start')
        first = len(text.splitlines()) - int(query["tailLines"]) if "tailLines" in query else 0
        if "follow" not in query:
            return self.answer("".join(lines_of(text, max(0, first), query)))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = max(0, first)
        while cluster.epoch == self.epoch:
            over, text = pod in cluster.over, cluster.logs[pod]
            for line in lines_of(text, sent, query):
                self.chunk(line)
            sent = max(sent, len(text.splitlines()))
            if over:
                return self.chunk("", last=True)
            time.sleep(0.01)
        self.close_connection = True
        return None

    def serves(self, parts: list[str]) -> bool:
        _, group, version, *_, plural = parts
        return group in ("batch", "apps", "networking.k8s.io", "storage.k8s.io") or plural in GROUPS.get(group, {}).get(
            version, []
        )

    def discover(self, group: str = "", version: str = "") -> None:
        if group not in GROUPS or (version and version not in GROUPS[group]):
            return self.refuse(404, "the server could not find the requested resource")
        if version:
            kinds = [{"name": name, "singularName": name[:-1], "namespaced": True} for name in GROUPS[group][version]]
            return self.answer({"resources": kinds})
        versions = [{"groupVersion": f"{group}/{name}"} for name in GROUPS[group]]
        return self.answer({"versions": versions, "preferredVersion": versions[0]})

    def show(self, plural: str, query: dict[str, str]) -> None:
        cluster = self.server.cluster
        with cluster.change:
            found = [one for one in cluster.objects.get(plural, {}).values() if matches(one, query)]
            version = str(cluster.version)
        # as the real one does, it leaves the kind out of the items of kinds of its own
        items: list[dict] | None = (
            [{key: one[key] for key in one if key != "kind"} for one in found] if plural in ("jobs", "pods") else found
        )
        kind = {"jobs": "Job", "pods": "Pod"}.get(plural, "Thing")
        if "as=PartialObjectMetadataList" in self.headers["Accept"]:
            items = items or None
        self.answer(
            {"kind": f"{kind}List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items}
        )

    def watch(self, plural: str, query: dict[str, str]) -> None:
        cluster, seen = self.server.cluster, int(query["resourceVersion"])
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if seen < cluster.oldest:
            status = {"kind": "Status", "code": 410, "message": f"too old resource version: {seen}"}
            return self.chunk(json.dumps({"type": "ERROR", "object": status}) + "\n", last=True)
        while True:
            with cluster.change:
                if cluster.epoch == self.epoch and cluster.version == seen:
                    cluster.change.wait(0.5)
                news = [event for event in cluster.history if event[0] > seen]
                seen = cluster.version
            if cluster.epoch != self.epoch:
                self.chunk('{"type": "MODIF')
                self.close_connection = True
                return None
            for _, kind, change, thing in news:
                if kind == plural and matches(thing, query):
                    self.chunk(json.dumps({"type": change, "object": thing}) + "\n")
            self.chunk(json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(seen)}}}) + "\n")

    def chunk(self, text: str, last: bool = False) -> None:
        piece = f"{len(text.encode()):x}\r\n{text}\r\n" if text else ""
        self.wfile.write(f"{piece}{END if last else ''}".encode())
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    """The server with its cluster; connections end with it."""

    daemon_threads = True

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may hang up."""


@contextmanager
def running() -> Iterator[Cluster]:
    """Run the server on a free port while the block runs."""
    cluster = Cluster()
    with Server(cluster) as server:
        cluster.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield cluster
        finally:
            cluster.cut()
            server.shutdown()
            thread.join()
