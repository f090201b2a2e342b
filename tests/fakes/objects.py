"""An API server on loopback that holds objects: lists, gets, creates, dry runs, patches and deletes them.

It binds claims, to a free volume first and else by making one in the classes that a test names, does with a volume what
its policy says when its claim goes, and lets pods run: what a cluster would do of itself.
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
        self.uids: list[str] = []  # which each deletion named
        self.patched: list[tuple[str, str]] = []
        self.tried: list[dict] = []  # by dry runs
        self.forbidden: set[str] = set()  # plurals
        self.binds: set[tuple[str, str]] = set()  # class and mode whose volumes are made
        self.destroyed: list[str] = []  # volumes that went with their claims, with their files
        self.version = 1
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
            thing["status"] = {"phase": "Pending"}
            storage_class = self.find_class(thing)
            if storage_class.get("volumeBindingMode") != "WaitForFirstConsumer":
                self.bind(thing, storage_class)
        elif plural == "pods":
            names = [one.get("persistentVolumeClaim", {}).get("claimName") for one in thing["spec"].get("volumes", [])]
            for claim in self.objects.get("persistentvolumeclaims", []):
                if claim["metadata"]["name"] in names and claim["status"] == {"phase": "Pending"}:
                    self.bind(claim, self.find_class(claim))
            if self.says:
                ended = {"terminated": {"exitCode": 0, "reason": "Completed", "message": self.says}}
                thing["status"] = {"phase": "Succeeded", "containerStatuses": [{"name": "probe", "state": ended}]}

    def find_class(self, claim: dict) -> dict:
        """Return a claim's class, whose name the claim gets where it names none, as by admission."""
        known = self.objects.get("storageclasses", [])
        default = next((one for one in known if "true" in one["metadata"].get("annotations", {}).values()), None)
        if default:
            claim["spec"].setdefault("storageClassName", default["metadata"]["name"])
        wanted = claim["spec"].get("storageClassName", "")
        return next((one for one in known if one["metadata"]["name"] == wanted), {})

    def bind(self, claim: dict, storage_class: dict) -> None:
        """Bind a claim as Kubernetes does: to the smallest free volume that fits, else to one that is made for it."""
        spec, meta = claim["spec"], claim["metadata"]
        which, modes = spec.get("storageClassName", ""), set(spec["accessModes"])
        least = quantity(spec["resources"]["requests"]["storage"])
        volumes = self.objects.setdefault("persistentvolumes", [])
        free = [one for one in volumes if is_free(one, meta) and class_of(one) == which
                and modes <= set(one["spec"]["accessModes"]) and quantity(one["spec"]["capacity"]["storage"]) >= least
                and one["spec"].get("volumeMode", "Filesystem") == spec.get("volumeMode", "Filesystem")]  # fmt: skip
        if free:
            found = min(free, key=lambda one: quantity(one["spec"]["capacity"]["storage"]))
            found["metadata"].setdefault("annotations", {})["pv.kubernetes.io/bound-by-controller"] = "yes"
        elif (which, spec["accessModes"][0]) in self.binds:
            found = self.make_volume(claim, storage_class)
            volumes.append(found)
        else:
            return self.warn(claim, "ProvisioningFailed", "only supports ReadWriteOnce")
        found["spec"]["claimRef"] = {key: meta[key] for key in ("namespace", "name", "uid")}
        found["status"] = {"phase": "Bound"}
        spec["volumeName"], claim["status"] = found["metadata"]["name"], {"phase": "Bound"}
        for one in (found, claim):
            self.touch(one)
        return None

    def make_volume(self, claim: dict, storage_class: dict) -> dict:
        """Return a new volume for a claim, as a provisioner makes it."""
        spec, by = claim["spec"], {"pv.kubernetes.io/provisioned-by": storage_class.get("provisioner", "none")}
        name = f"pvc-{claim['metadata']['uid']}"
        meta = {
            "name": name,
            "uid": f"uid-{name}",
            "annotations": by,
            "creationTimestamp": datetime.now(UTC).isoformat(),
        }
        return {"metadata": meta, "spec": {
            "storageClassName": spec.get("storageClassName", ""), "accessModes": spec["accessModes"],
            "capacity": spec["resources"]["requests"],
            "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy", "Delete")}}  # fmt: skip

    def touch(self, thing: dict) -> None:
        """Give an object that has changed its next version."""
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)

    def reclaim(self, claim: dict) -> None:
        """Do with the volume of a claim that has gone what its policy says."""
        for volume in list(self.objects.get("persistentvolumes", [])):
            if volume["spec"].get("claimRef", {}).get("uid") == claim["metadata"].get("uid"):
                if volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete":
                    self.objects["persistentvolumes"].remove(volume)
                    self.destroyed.append(volume["metadata"]["name"])
                else:
                    volume["status"] = {"phase": "Released"}

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


def quantity(text: str) -> int:
    """Return an amount of storage in bytes."""
    units = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}
    return int(text[:-2]) << units[text[-2:]] if text[-2:] in units else int(text)


def class_of(volume: dict) -> str:
    """Return the class of a volume: by its annotation, else by its spec."""
    notes = volume["metadata"].get("annotations") or {}
    return str(notes.get("volume.beta.kubernetes.io/storage-class", volume["spec"].get("storageClassName", "")))


def is_free(volume: dict, claim: dict) -> bool:
    """Whether a volume is bound to no claim, and kept for none but this one."""
    kept = volume["spec"].get("claimRef")
    if kept:
        return "uid" not in kept and (kept["namespace"], kept["name"]) == (claim["namespace"], claim["name"])
    return bool(volume.get("status", {}).get("phase") == "Available")


def merge(held: dict, change: dict) -> None:
    """Change an object as a merge patch says."""
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(held.get(key), dict):
            merge(held[key], value)
        elif value is None:
            held.pop(key, None)
        else:
            held[key] = value


def clash(held: dict, wanted: dict) -> str:
    """Return what of an object is other than a request takes for granted: uid or version."""
    for key in ("uid", "resourceVersion"):
        has = held["metadata"].get(key)
        if wanted.get(key, has) != has:
            return f"Precondition failed: {key} in precondition: {wanted[key]}, {key} in object meta: {has}"
    return ""


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
            held.touch(thing)
            held.live(plural, thing)
            held.objects.setdefault(plural, []).append(thing)
            held.created.append((plural, meta["name"]))
        return self.answer(thing, 201)

    def changeable(self, plural: str, space: str, name: str, wanted: dict) -> dict | None:
        """Return the object that a request changes; refuse where it is not there, or not as the request has it."""
        named = [one for one in self.server.held.objects.get(plural, []) if one["metadata"]["name"] == name]
        found = [one for one in named if space in ("", one["metadata"].get("namespace", ""))]
        if not found:
            self.refuse(404, f'{plural} "{name}" not found')
        elif why := clash(found[0], wanted):
            self.refuse(409, why)
        else:
            return found[0]
        return None

    def do_PATCH(self) -> None:
        plural, space, name = self.place()
        body = self.body()
        if self.handled(plural, "patch") or not (one := self.changeable(plural, space, name, body.get("metadata", {}))):
            return
        held = self.server.held
        merge(one, body)
        held.touch(one)
        held.patched.append((plural, name))
        self.answer(one)

    def do_DELETE(self) -> None:
        plural, space, name = self.place()
        wanted = self.body().get("preconditions", {})
        if self.handled(plural, "delete") or not (one := self.changeable(plural, space, name, wanted)):
            return
        held = self.server.held
        held.objects[plural].remove(one)
        held.deleted.append((plural, name))
        held.uids.append(wanted.get("uid", ""))
        if plural == "persistentvolumeclaims":
            held.reclaim(one)
        self.answer(one)


@contextmanager
def running(objects: dict[str, list[dict]], kinds: dict[str, tuple[str, str]]) -> Iterator[Objects]:
    """Serve these objects while the block runs."""
    with loopback.serving(Handler) as server:
        server.held = Objects(objects, kinds)  # type: ignore[attr-defined]
        server.held.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
        yield server.held  # type: ignore[attr-defined]
