"""The one place that talks to the cluster's API server: over one connection, in plain JSON.

Connections come from the Python client `kubernetes`: a process of kubectl costs 90 ms of CPU time, a request here
about 1 ms. Only what runs in a pod is left to kubectl (`exec_command`): a claim's tar may be many gigabytes, and the
client would poll for, copy and unwrap every frame of it in Python.
"""

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from urllib3 import Timeout
from urllib3.exceptions import HTTPError

from trainyard.cluster import connection
from trainyard.cluster.errors import KubeError, RefusedError, UnreachableError

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse  # urllib3 1, which the client takes too, does not have it

TIMEOUT = 60.0  # seconds for an answer
KUBELET = 10.0  # seconds for one that the API server has to ask a kubelet for, whose node may be cut off
WATCH = 240  # seconds after which the server ends a watch, to be begun again
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


def explain_refusal(status: int, body: bytes) -> str:
    """Return what an API server says of a refusal, with the remedy where one is known."""
    text = body.decode(errors="replace").strip()
    with contextlib.suppress(ValueError, AttributeError):
        text = json.loads(text).get("message", text)
    text = text or f"HTTP status {status}"
    if status == 401:
        return f"the API server does not know this user ({text}): log in again, or name another KUBECONFIG"
    if status == 403 and not re.search(r'" is forbidden: (?!User )|denied the request', text):  # by a role, not a rule
        return f"{text}: ask for a role that allows it, or name another namespace with -n"
    return text


def request(
    path: str,
    query: dict[str, Any] | None = None,
    *,
    method: str = "GET",
    body: dict | None = None,
    accept: str = "application/json",
    content: str = "application/json",
    timeout: float = TIMEOUT,
) -> "BaseHTTPResponse":
    """Send a request; return the answer, an iterable of lines whose `data` is all of it.

    Raises RefusedError with the server's words, and UnreachableError where no answer comes in `timeout` seconds.
    """
    with asking() as client:
        answer = client.pool.request(
            method,
            f"{client.settings.host}{path}?{urlencode(query or {})}".rstrip("?"),
            body=None if body is None else json.dumps(body),
            headers={"Accept": accept, "Content-Type": content} | client.login(),
            timeout=Timeout(connect=min(timeout, 10.0), read=timeout),
            preload_content=False,
        )
        if answer.status >= 300:
            raise RefusedError(answer.status, explain_refusal(answer.status, answer.data))
    return answer


@contextlib.contextmanager
def asking(broken: type[Exception] = OSError) -> Iterator[connection.Client]:
    """Yield the client; raises UnreachableError, which names its server, where the connection breaks meanwhile.

    A watch may break when its command has ended, and the next one of the process has another client.
    """
    client = connection.client()
    try:
        yield client
    except (HTTPError, OSError, broken) as error:
        raise UnreachableError(unreachable(error, client.settings)) from error


def unreachable(error: object, settings: Any) -> str:
    """Say that the API server gave no answer, and the last cause that urllib3 names."""
    cause = str(getattr(error, "reason", error)).rpartition(": ")[2].rstrip("'\")") or type(error).__name__
    through = f" through the proxy {settings.proxy}" if settings.proxy else ""
    return (
        f"no answer from {settings.host}{through}: {cause}; is the cluster up, and is KUBECONFIG that of this cluster?"
    )


def read(path: str, query: dict[str, Any] | None = None, **options: Any) -> dict:
    """Return an answer's JSON; raises as `request` does."""
    return parse_answer(request(path, query, **options))


def parse_answer(answer: "BaseHTTPResponse") -> dict:
    """Return the JSON of an answer whose head has come; raises UnreachableError where the rest does not."""
    with asking():
        found: dict = json.loads(answer.data)
    return found


class Kind(NamedTuple):
    """Where the API server has the objects of a kind."""

    path: str  # of its group and version
    plural: str
    namespaced: bool = True

    def address(self, namespace: str | None) -> str:
        """Return the path of its objects: those of a namespace, or of all for None."""
        inside = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        return f"{self.path}{inside}/{self.plural}"


# What has been looked up. A kind that the cluster does not know is not kept: its definition may come yet.
_KINDS = {kind: Kind("/api/v1", kind) for kind in ("pods", "events", "persistentvolumeclaims", "configmaps")} | {
    "jobs.batch": Kind("/apis/batch/v1", "jobs"),
    "deployments.apps": Kind("/apis/apps/v1", "deployments"),
    "networkpolicies": Kind("/apis/networking.k8s.io/v1", "networkpolicies"),
    "storageclasses.storage.k8s.io": Kind("/apis/storage.k8s.io/v1", "storageclasses", False),
}


def known(kind: str) -> Kind | None:
    """Return where a kind is served; None where the cluster does not know it.

    A kind is written as kubectl takes it: pods, pvc, jobs.batch, pytorchjobs.kubeflow.org. Without a group, it is
    looked for in the core first, then in all groups.
    """
    name, _, group = kind.partition(".")
    for path in () if kind in _KINDS else versions(group):
        for one in resources(path):
            if name in (one["name"], one.get("singularName"), *one.get("shortNames", ())):
                return _KINDS.setdefault(kind, Kind(path, one["name"], one["namespaced"]))
    return _KINDS.get(kind)


def resources(path: str) -> list[dict]:
    """Return the kinds of a group and version; none where it is gone or the server behind it is."""
    try:
        found: list[dict] = read(path)["resources"]
    except RefusedError as error:
        if error.status not in (404, 503):
            raise
        return []
    return found


def versions(group: str) -> Iterator[str]:
    """Yield the paths of a group's versions, the preferred one first; without a group, those of all groups."""
    if group:
        try:
            groups = [read(f"/apis/{group}")]
        except RefusedError as error:
            if error.status != 404:
                raise
            return
    else:
        yield "/api/v1"
        groups = read("/apis")["groups"]
    preferred = [one["preferredVersion"]["groupVersion"] for one in groups]
    others = [version["groupVersion"] for one in groups for version in one["versions"]]
    yield from (f"/apis/{version}" for version in dict.fromkeys([*preferred, *others]))


def listing(
    kind: str, namespace: str | None, selector: str = "", fields: str = "", **options: Any
) -> tuple[list[dict], str] | None:
    """List the objects of a kind, with the version from which a watch continues; None for an unknown kind."""
    place = known(kind)
    if place is None:
        return None
    try:
        found = read(place.address(namespace), selection(selector, fields), **options)
    except RefusedError as error:
        if error.status != 404:
            raise
        _KINDS.pop(kind, None)  # its definition was deleted meanwhile
        return None
    head = {"kind": found["kind"].removesuffix("List"), "apiVersion": found["apiVersion"]}
    items = found["items"] or ()  # null in an empty list of metadata alone
    return [head | one for one in items], found["metadata"]["resourceVersion"]  # a list leaves these out


def is_left_out(kind: str, error: RefusedError) -> bool:
    """Whether a list that this user may not have is one that commands can do without: of all but pods and claims."""
    return error.status == 403 and kind not in ("pods", "persistentvolumeclaims")


def selector(labels: Mapping[str, str]) -> str:
    """Return the selector for objects with all of these labels."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def selection(selector: str, fields: str) -> dict[str, str]:
    """Return the query for objects with these labels and fields."""
    return {key: text for key, text in (("labelSelector", selector), ("fieldSelector", fields)) if text}


def items(kind: str, namespace: str | None, selector: str = "", fields: str = "", **options: Any) -> list[dict]:
    """Return the objects of a kind in a namespace, or in all for None; a kind that the cluster does not know has none.

    Raises KubeError where they cannot be read.
    """
    found = listing(kind, namespace, selector, fields, **options)
    return found[0] if found else []


def changes(
    kind: str, namespace: str, version: str, selector: str = "", *, fields: str = "", seconds: float = WATCH
) -> Iterator[tuple[str, dict]]:
    """Watch a kind from a version on: yield ADDED, MODIFIED, DELETED or BOOKMARK, with the object.

    Ends when the server ends the watch. Raises RefusedError, with status 410 where the version is too old by now, and
    UnreachableError when the connection breaks.
    """
    query = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version, "timeoutSeconds": int(seconds)}
    place = known(kind)
    if place is None:
        raise RefusedError(410, f"the cluster does not know {kind} any more")
    with asking(ValueError):  # of a line that was cut off
        answer = request(place.address(namespace), query | selection(selector, fields), timeout=seconds + 30)
        with contextlib.closing(answer):
            for line in answer:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise RefusedError(event["object"].get("code", 500), event["object"].get("message", ""))
                yield event["type"], event["object"]


def until(
    kind: str, namespace: str, name: str, fits: Callable[[dict | None], object], seconds: float
) -> tuple[bool, dict | None]:
    """Watch one object until it fits (None: it is not there) or time is up; return whether it fits, and its state."""
    end, fields = time.monotonic() + seconds, f"metadata.name={name}"
    while True:
        found, version = listing(kind, namespace, fields=fields) or ([], "")
        state = found[0] if found else None
        if fits(state) or (left := end - time.monotonic()) < 1:
            return bool(fits(state)), state
        with contextlib.suppress(UnreachableError, RefusedError):  # then it is listed again
            for change, thing in changes(kind, namespace, version, fields=fields, seconds=left):
                if change != "BOOKMARK" and fits(state := None if change == "DELETED" else thing):
                    return True, state


def require_kind(kind: str) -> Kind:
    """Return where a kind is served; raises KubeError where the cluster does not know it."""
    place = known(kind)
    if place is None:
        raise KubeError(f"the cluster does not know {kind}")
    return place


def create(kind: str, namespace: str, thing: dict) -> dict:
    """Create an object and return it; raises KubeError with the server's words."""
    return read(require_kind(kind).address(namespace), method="POST", body=thing)


def delete(
    kind: str, namespace: str, seen: dict, labels: Mapping[str, str], *, unchanged: bool = False, at_once: bool = False
) -> None:
    """Delete an object that was seen, which may be gone already, and never another of its name.

    `labels` are those by which it is ours; `unchanged`: only as it was seen. Raises KubeError where it does not have
    them, and RefusedError with status 409 where another has its name by now, or it has changed.
    """
    meta = seen["metadata"]
    held, label = meta.get("labels") or {}, f"{kind}/{meta['name']}"
    if lacking := [f"{key}={value}" for key, value in labels.items() if held.get(key) != value]:
        raise KubeError(f"{label} is another's, without the label {lacking[0]}, and was left alone")
    wanted = {key: meta[key] for key in ("uid", "resourceVersion") if key == "uid" or unchanged}
    body: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": wanted}
    body |= {"gracePeriodSeconds": 0} if at_once else {}
    try:
        read(f"{require_kind(kind).address(namespace)}/{meta['name']}", method="DELETE", body=body)
    except RefusedError as error:
        if error.status == 409:
            raise RefusedError(
                409, f"{label} was recreated or changed by somebody, and was left alone: {error}"
            ) from None
        if error.status != 404:
            raise


def logs(pod: str, namespace: str, container: str = "", *, tail: int | None = None, since: int = 0) -> str:
    """Return a pod's log, its last lines, or those of the last seconds (`since`).

    It is empty where the container has not started or nobody has its log. Raises UnreachableError, too, where the
    kubelet gave the API server no answer: the log is there, and may be read later; and RefusedError where this user may
    not read it.
    """
    query = {"container": container, "tailLines": tail, "sinceSeconds": since}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
    asked = {key: value for key, value in query.items() if value}
    try:
        with asking():
            return request(path, asked, accept="*/*", timeout=KUBELET).data.decode(errors="replace")
    except RefusedError as error:
        if error.status == 429 or error.status >= 500:
            raise UnreachableError(str(error)) from error
        if error.status == 403:
            raise
        return ""


def log_lines(pod: str, namespace: str, container: str, **query: Any) -> Iterator[str]:
    """Yield the lines of a log as they are written, until the container ends (`follow`) or the log does.

    `query` is of the API's: tailLines, sinceTime, timestamps, follow. Raises RefusedError where there is no log, and
    UnreachableError when the connection breaks.
    """
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
    query = {key: str(value).lower() if value is True else value for key, value in query.items() if value}
    quiet = WATCH if "follow" in query else TIMEOUT  # a job may print nothing for minutes
    with (
        asking(),
        contextlib.closing(request(path, {"container": container, **query}, accept="*/*", timeout=quiet)) as answer,
    ):
        rest = b""
        for piece in answer.stream(1 << 16):
            *lines, rest = (rest + piece).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
        if rest:
            yield rest.decode(errors="replace")


def exec_command(pod: str, namespace: str, *command: str, stdin: bool = False) -> tuple[list[str], dict[str, str]]:
    """Return the kubectl that runs a command in a pod, and its environment; `stdin` is passed on to it.

    The pinned kubectl of build/bin, else the one on PATH; raises KubeError where there is none.
    """
    pinned = connection.ROOT / "build" / "bin" / "kubectl"
    found = str(pinned) if pinned.exists() else shutil.which("kubectl")
    if not found:
        raise KubeError(f"kubectl is not on PATH: install it{connection.OR_OURS}")
    line = [found, "exec", *(["-i"] if stdin else []), "-n", namespace, pod, "--", *command]
    return line, {**os.environ, "KUBECONFIG": connection.kubeconfig()}
