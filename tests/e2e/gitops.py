"""Argo CD's part of the end-to-end tests: git repositories to sync from, and what becomes of Applications."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.e2e import cluster
from tests.e2e.cluster import kubectl, until

ARGOCD = "argocd"  # its namespace
GIT = ("git", "-c", "user.name=tests", "-c", "user.email=tests@example.com", "-c", "init.defaultBranch=main")


def git(repository: Path, *args: str) -> str:
    """Run git in a repository, whatever this machine's settings of it are."""
    done = subprocess.run([*GIT, "-C", str(repository), *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commit(repository: Path, files: Mapping[str, str | None], message: str, tag: str = "") -> None:
    """Write files, or delete those that are None, and commit them; the repository is made where there is none."""
    if not (repository / ".git").exists():
        repository.mkdir(parents=True, exist_ok=True)
        git(repository, "init", "-q")
    for name, text in files.items():
        path = repository / name
        if text is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", message)
    if tag:
        git(repository, "tag", tag)


def application(name: str) -> dict:
    """Return an Application, or nothing where there is none."""
    found = kubectl("get", "application", name, "-n", ARGOCD, "-o", "json", "--ignore-not-found")
    return json.loads(found) if found else {}


def state(one: dict) -> tuple[str, str]:
    """Return how an Application's objects compare to git, and their health."""
    status = one.get("status", {})
    return status.get("sync", {}).get("status", ""), status.get("health", {}).get("status", "")


def operation(one: dict) -> tuple[str, str]:
    """Return when an Application's last operation began, and how far it is."""
    last = one.get("status", {}).get("operationState", {})
    return last.get("startedAt", ""), last.get("phase", "")


def said(one: dict, kind: str) -> list[str]:
    """Return what Argo CD says of the health of an Application's objects of a kind."""
    resources = one.get("status", {}).get("resources", [])
    return [r.get("health", {}).get("message", "") for r in resources if r["kind"] == kind]


def trouble(one: dict) -> str:
    """Return what an Application says of itself, for people."""
    status = one.get("status", {})
    keep = {key: status.get(key) for key in ("sync", "health", "conditions", "resources")}
    return json.dumps(keep | {"operation": status.get("operationState", {}).get("message")}, indent=1)


def refresh(name: str, how: str = "normal") -> None:
    """Have Argo CD compare an Application with git now; `hard` renders it anew too."""
    note = f"argocd.argoproj.io/refresh={how}"
    kubectl("annotate", "application", name, "-n", ARGOCD, note, "--overwrite", check=False)


def abandon(name: str) -> None:
    """Let go of an Application whose deletion does not end, and of what belongs to it."""
    patch = '{"metadata": {"finalizers": null}}'
    kubectl("patch", "application", name, "-n", ARGOCD, "--type", "merge", "-p", patch, check=False)


def regenerate(name: str) -> None:
    """Have Argo CD look at an ApplicationSet's repository now."""
    note = "argocd.argoproj.io/application-set-refresh=true"
    kubectl("annotate", "applicationset", name, "-n", ARGOCD, note, "--overwrite")


def becomes(name: str, wanted: Callable[[dict], object], what: str, seconds: float) -> dict:
    """Wait until an Application is as wanted, and return it."""
    last: dict = {}

    def look() -> object:
        nonlocal last
        last = application(name)
        return last and wanted(last)

    until(lambda: f"{name} {what}: {trouble(last)}", look, seconds)
    return last


def objects(one: dict) -> dict[str, dict]:
    """Return all that an Application consists of, as it is in the cluster, by kind and name."""
    found = {}
    for part in one["status"]["resources"]:
        kind = f"{part['kind']}.{part['group']}" if part.get("group") else part["kind"]
        if part["kind"] != "Namespace":
            text = kubectl("get", kind, part["name"], "-n", part["namespace"], "-o", "json")
            found[f"{part['kind']}/{part['name']}"] = json.loads(text)
    return found


class Seen(NamedTuple):
    """One state that an Application was seen in, and when (in seconds of the monotonic clock)."""

    time: float
    sync: str
    health: str
    operation: tuple[str, str]


class Watch:
    """Every state that Applications go through, from the API server's own stream of changes."""

    def __init__(self) -> None:
        command = ["kubectl", "get", "applications", "-n", ARGOCD, "-w", "-o", "json"]
        self.process = subprocess.Popen(command, env=cluster.ENV, text=True, stdout=subprocess.PIPE)
        self.seen: dict[str, list[Seen]] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        text = ""
        for line in self.process.stdout or ():
            text += line
            if line.rstrip() == "}":
                one, text = json.loads(text), ""
                now = Seen(time.monotonic(), *state(one), operation(one))
                self.seen.setdefault(one["metadata"]["name"], []).append(now)

    def stop(self) -> None:
        """End it."""
        self.process.terminate()

    def first(self, name: str, since: float, health: str) -> float:
        """Return how many seconds after a moment an Application was first in sync with git and of a health."""
        for one in self.seen.get(name, []):
            if one.time >= since and (one.sync, one.health) == ("Synced", health):
                return one.time - since
        raise AssertionError(f"{name} was never in sync and {health}: {self.seen.get(name)}")

    def last(self, name: str) -> Seen:
        """Return the state that an Application came into last: when it did, not when it was written again."""
        states = self.seen[name]
        changes = [
            one for before, one in zip([None, *states], states, strict=False) if not before or before[1:3] != one[1:3]
        ]
        return changes[-1]

    def healths(self, name: str) -> list[str]:
        """Return the healths that an Application in sync with git went through, one after the other."""
        found = [one.health for one in self.seen.get(name, []) if one.sync == "Synced"]
        return [one for before, one in zip(["", *found], found, strict=False) if one != before]
