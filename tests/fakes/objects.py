"""An API server on loopback that holds objects: lists, gets, creates, dry runs, patches and deletes them.

It binds claims of the classes that a test names, and lets pods run: what a cluster would do of itself.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.fakes import loopback

REVIEWS = ("selfsubjectaccessreviews", "subjectaccessreviews")


class Objects:
    """What a test sees of the server: objects by plural, those created and deleted, and what it refuses."""

    def __init__(self, objects: dict[str, list[dict]], kinds: dict[str, tuple[str, str]]) -> None:
        self.url, self.objects, self.kinds = "", objects, kinds  # kinds: by plural, group/version and kind
        self.created: list[tuple[str, str]] = []  # plural and name
        self.deleted: list[tuple[str, str]] = []
        self.patched: list[tuple[str, str]] = []
        self.tried: list[dict] = []  # by dry runs
        self.forbidden: set[str] = set()  # plurals
        self.binds: set[tuple[str, str]] = set()  # class and mode
        self.says = "names=yes"  # the termination message of pods; empty: they never start
        self.admit: Callable[[dict], tuple[int, str] | None] = lambda thing: None
        self.denies: Callable[[dict], object] = lambda spec: False  # told what is asked about a right
        self.seen: Callable[[str], object] = lambda path: None  # told each path that is asked

    def kubeconfig(self, file: Path) -> Path:
        parts = {
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }
        file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "x", **parts}))
        return file

    def live(self, plural: str, thing: dict) -> None:
        """Do with a created object what controllers and kubelets would."""
        if plural == "persistentvolumeclaims":
            spec = thing["spec"]
            if (spec.get("storageClassName", ""), spec["accessModes"][0]) in self.binds:
                spec["volumeName"] = f"pv-{thing['metadata']['name']}"
                thing["status"] = {"phase": "Bound"}
            else:
                thing["status"] = {"phase": "Pending"}
                self.warn(thing, "ProvisioningFailed", "only supports ReadWriteOnce")
        elif plural == "pods" and self.says:
            ended = {"terminated": {"exitCode": 0, "reason": "Completed", "message": self.says}}
            thing["status"] = {"phase": "Succeeded", "containerStatuses": [{"name": "probe", "state": ended}]}

    def warn(self, thing: dict, reason: str, message: str) -> None:
        event = {
            "metadata": {"name": f"e{len(self.objects.get('events', []))}", "namespace": thing["metadata"]["namespace"]}
        }
        event |= {
            "involvedObject": {"uid": thing["metadata"]["uid"]},
            "type": "Warning",
            "reason": reason,
            "message": message,
        }
        self.objects.setdefault("events", []).append(event)


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *args: Any) -> None:
        """Stay quiet."""

    def answer(self, body: dict, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: int, message: str) -> None:
        self.answer({"kind": "Status", "apiVersion": "v1", "code": status, "message": message}, status)

    def place(self) -> tuple[str, str, str]:
        """Return plural, namespace and name that a path means."""
        parts = urlsplit(self.path).path.strip("/").split("/")
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        space = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            space, rest = rest[1], rest[2:]
        return rest[0] if rest else "", space, rest[1] if len(rest) > 1 else ""

    def handled(self, plural: str, verb: str) -> bool:
        """Answer what holds for every request: discovery, unknown kinds, and what is forbidden."""
        held, path = self.server.held, urlsplit(self.path).path
        held.seen(path)
        if path == "/version":
            self.answer({"gitVersion": "v1.36.4"})
        elif path == "/readyz":
            self.answer({})
        elif not plural:
            self.discover(path)
        elif plural in held.forbidden:
            self.refuse(403, f'{plural} is forbidden: User "u" cannot {verb} resource "{plural}" in API group ""')
        elif plural not in held.kinds and plural not in REVIEWS:
            self.refuse(404, "the server could not find the requested resource")
        else:
            return False
        return True

    def discover(self, path: str) -> None:
        kinds, (_, *where) = self.server.held.kinds, path.strip("/").split("/")
        if where == ["v1"] or len(where) == 2:
            version = "/".join(where)
            found = [
                {"name": one, "singularName": one[:-1], "namespaced": True}
                for one, (api, _) in kinds.items()
                if api == version
            ]
            return self.answer({"resources": found})
        versions = sorted(
            {api for api, _ in kinds.values() if "/" in api and (not where or api.startswith(f"{where[0]}/"))}
        )
        if not versions:
            return self.refuse(404, "the server could not find the requested resource")
        group = {
            "versions": [{"groupVersion": one} for one in versions],
            "preferredVersion": {"groupVersion": versions[0]},
        }
        return self.answer(group if where else {"groups": [group]})

    def do_GET(self) -> None:
        plural, space, name = self.place()
        if self.handled(plural, "list"):
            return None
        held = self.server.held
        query = {key: values[-1] for key, values in parse_qs(urlsplit(self.path).query).items()}
        found = [one for one in held.objects.get(plural, []) if space in ("", one["metadata"].get("namespace", ""))]
        if name:
            found = [one for one in found if one["metadata"]["name"] == name]
            return self.answer(found[0]) if found else self.refuse(404, f'{plural} "{name}" not found')
        for part in filter(None, query.get("fieldSelector", "").split(",")):
            path, _, value = part.partition("=")
            keys = path.removesuffix("!").split(".")
            if not path.endswith("!"):
                found = [one for one in found if one.get(keys[0], {}).get(keys[1]) == value]
        for part in filter(None, query.get("labelSelector", "").split(",")):
            key, _, value = part.partition("=")
            found = [one for one in found if one["metadata"].get("labels", {}).get(key) == value]
        api, kind = held.kinds[plural]
        return self.answer(
            {"kind": f"{kind}List", "apiVersion": api, "metadata": {"resourceVersion": "1"}, "items": found}
        )

    def body(self) -> dict:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return json.loads(text) if text else {}

    def do_POST(self) -> None:
        plural, space, _ = self.place()
        thing, held = self.body(), self.server.held
        if self.handled(plural, "create"):
            return None
        if plural in REVIEWS:
            return self.answer({"status": {"allowed": not held.denies(thing["spec"])}})
        refusal = held.admit(thing)
        if refusal:
            return self.refuse(*refusal)
        meta = thing["metadata"] | {"namespace": space, "creationTimestamp": datetime.now(UTC).isoformat()}
        meta |= {"uid": f"uid-{meta.get('name', 'x')}"}
        thing = thing | {"metadata": meta}
        if "dryRun=All" in self.path:
            held.tried.append(thing)
        else:
            held.live(plural, thing)
            held.objects.setdefault(plural, []).append(thing)
            held.created.append((plural, meta["name"]))
        return self.answer(thing, 201)

    def do_PATCH(self) -> None:
        plural, _, name = self.place()
        body = self.body()
        if not self.handled(plural, "patch"):
            self.server.held.patched.append((plural, name))
            self.answer(body)

    def do_DELETE(self) -> None:
        plural, _, name = self.place()
        self.body()
        if self.handled(plural, "delete"):
            return None
        held = self.server.held
        found = [one for one in held.objects.get(plural, []) if one["metadata"]["name"] == name]
        if not found:
            return self.refuse(404, f'{plural} "{name}" not found')
        held.objects[plural].remove(found[0])
        held.deleted.append((plural, name))
        return self.answer(found[0])


@contextmanager
def running(objects: dict[str, list[dict]], kinds: dict[str, tuple[str, str]]) -> Iterator[Objects]:
    """Serve these objects while the block runs."""
    with loopback.serving(Handler) as server:
        server.held = Objects(objects, kinds)  # type: ignore[attr-defined]
        server.held.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
        yield server.held  # type: ignore[attr-defined]
