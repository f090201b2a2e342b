"""Releases with something wrong in them, installed side by side, and how soon trainyard why and their pods name it."""

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests import patience
from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl, log, why
from trainyard.cluster.errors import KubeError

WITHIN = 60  # seconds in which trainyard why must name the cause
AT_ONCE = threading.Semaphore(2)  # helm and trainyard why at a time


@dataclass
class Case:
    """What is set wrong, and parts of the cause and the remedy that must be named together."""

    cause: str
    remedy: str
    values: Mapping[str, object] = field(default_factory=dict)  # dotted keys
    tells: bool = False  # a container runs, and names the cause itself
    change: Callable[[str], str] | None = None  # of the rendered manifests, where no values can do it
    place: str = ""  # what the test makes for it: `class` without RWX for its data, or `registry` for its image


@dataclass
class Named:
    """When and how a case was named, in seconds since `helm install` was called."""

    within: float = WITHIN  # in which it had to be named, on a machine as slow as this was
    seconds: float = 0.0
    cause: str = ""
    remedy: str = ""
    pod_seconds: float = 0.0
    last: str = ""  # all that trainyard why said last


def nested(values: Mapping[str, object]) -> dict:
    """Turn dotted keys into the tree of a values file."""
    tree: dict = {}
    for key, value in values.items():
        *parents, last = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree


def installer(namespace: str, image: Mapping[str, str], places: Mapping[str, dict]) -> Callable[[Case, str], None]:
    """Return a function that installs a case under a release's name; `places` are values of what the test made."""
    base = {
        "global.image.registry": image["registry"], "global.image.tag": image["tag"],
        "global.storage.data.existingClaim": "data", "global.storage.results.existingClaim": "results",
        "global.dataset.name": "whole",
        "global.training.nodes": 1, "global.training.gpusPerNode": 0, "global.training.processesPerNode": 1,
        "global.training.recipe": "demo", "global.training.shmSize": "8Mi",
        "global.training.resources.requests": {"cpu": "10m", "memory": "64Mi"},
        "dataset.enabled": False, "pytorchjob.enabled": True, "mpijob.enabled": False,
    }  # fmt: skip

    def install(case: Case, release: str) -> None:
        values = base | dict(case.values) | places.get(case.place, {})
        command = ("template",) if case.change else ("upgrade", "--install")
        where = (release, "charts/trainyard", "-n", namespace, "-f", "-")
        done = cluster.helm(*command, *where, stdin=json.dumps(nested(values)))
        if case.change:
            kubectl("apply", "-n", namespace, "-f", "-", stdin=case.change(done.stdout))

    return install


def findings(text: str) -> list[tuple[str, str]]:
    """Return cause and remedy of each finding that trainyard why printed with both."""
    return re.findall(r"^    because: (.*)\n    remedy:  (.*)$", text, re.M)


def told(pod: dict) -> str:
    """Return what a pod's containers say: their termination messages, and the logs of those that run."""
    said = []
    for status in (*pod["status"].get("initContainerStatuses", []), *pod["status"].get("containerStatuses", [])):
        ended = status["state"].get("terminated") or status.get("lastState", {}).get("terminated") or {}
        said.append(ended.get("message", ""))
        if status["state"].get("running"):
            meta = pod["metadata"]
            said.append(log(meta["name"], meta["namespace"], status["name"]))
    return "\n".join(said)


def listen(namespace: str, cases: Mapping[str, Case], heard: dict[str, float], over: threading.Event) -> None:
    """Note when the first pod of each release whose case tells names its cause."""
    tell = {release: case for release, case in cases.items() if case.tells}
    while not over.wait(2) and tell.keys() - heard.keys():
        with contextlib.suppress(KubeError):  # no answer now: it is asked again
            for pod in get("pods", namespace, "app.kubernetes.io/part-of=trainyard"):
                release = pod["metadata"]["labels"]["app.kubernetes.io/instance"]
                if release in tell.keys() - heard.keys() and tell[release].cause in told(pod):
                    heard[release] = time.monotonic()


def stretch(found: Named, seconds: float) -> None:
    """Give a case more time where it takes longer and the machine has become slower since it was installed."""
    if seconds > found.within:
        found.within = max(found.within, WITHIN * patience.slowness())


def watch(case: Case, release: str, namespace: str, install: Callable[[Case, str], None], heard: dict) -> Named:
    """Install a case and look until it is named, or the time is over."""
    found = Named()
    with AT_ONCE:
        started = time.monotonic()
        install(case, release)
        found.within = WITHIN * patience.slowness()
    while time.monotonic() - started < found.within + 10:
        if not found.seconds:
            with AT_ONCE:
                found.last = why(release, namespace)
            now = time.monotonic() - started
            fits = [(c, r) for c, r in findings(found.last) if case.cause in c and case.remedy in r]
            if fits:
                found.seconds, (found.cause, found.remedy) = now, fits[0]
        if found.seconds and (release in heard or not case.tells):
            break
        time.sleep(1)
        stretch(found, time.monotonic() - started)
    found.pod_seconds = heard.get(release, started) - started
    stretch(found, max(found.seconds, found.pod_seconds))
    return found


def table(named: Mapping[str, Named]) -> str:
    """Lay out what was measured."""
    rows = [("case", "why, s", "pod, s", "what trainyard why said", "remedy")]
    for name, one in named.items():
        own = f"{one.pod_seconds:.0f}" if one.pod_seconds else "-"
        rows.append((name, f"{one.seconds:.0f}" if one.seconds else "never", own, one.cause, one.remedy))
    return "\n".join(" | ".join(row) for row in rows) + "\n"
