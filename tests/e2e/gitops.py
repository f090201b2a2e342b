"""Argo CD's part of the end-to-end tests: git repositories to sync from, and the states of Applications."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.charts import helm
from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl, until

ARGOCD = "argocd"  # its namespace
DEPLOY = helm.ROOT / "deploy" / "argocd"
GIT = ("git", "-c", "user.name=tests", "-c", "user.email=tests@example.com", "-c", "init.defaultBranch=main")


def git(repository: Path, *args: str) -> str:
    """Run git in a repository, whatever this machine's settings of it are."""
    done = subprocess.run([*GIT, "-C", str(repository), *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commit(repository: Path, files: Mapping[str, str | None], message: str, tag: str = "") -> None:
    """Write files, or delete those that are None, and commit them; create the repository if there is none."""
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
    """Return an Application, or nothing if there is none."""
    found = get("applications.argoproj.io", ARGOCD, fields=f"metadata.name={name}")
    return found[0] if found else {}


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


def starved(one: dict) -> bool:
    """Return whether a health is unknown because a busy machine did not give its check the second that it may take."""
    resources = one.get("status", {}).get("resources", [])
    return any("context deadline exceeded" in r.get("health", {}).get("message", "") for r in resources)


def trouble(one: dict) -> str:
    """Return what an Application says of itself, for people."""
    status = one.get("status", {})
    keep = {key: status.get(key) for key in ("sync", "health", "conditions", "resources")}
    return json.dumps(keep | {"operation": status.get("operationState", {}).get("message")}, indent=1)


def refresh(*names: str, how: str = "normal") -> None:
    """Let Argo CD compare Applications with git now; `hard` also renders them again."""
    note = f"argocd.argoproj.io/refresh={how}"
    kubectl("annotate", "application", *names, "-n", ARGOCD, note, "--overwrite", check=False)


def abandon(name: str) -> None:
    """Remove the finalizers of an Application whose deletion does not end, and of its objects."""
    patch = '{"metadata": {"finalizers": null}}'
    kubectl("patch", "application", name, "-n", ARGOCD, "--type", "merge", "-p", patch, check=False)


def regenerate(name: str) -> None:
    """Have Argo CD look at an ApplicationSet's repository now."""
    note = "argocd.argoproj.io/application-set-refresh=true"
    kubectl("annotate", "applicationset", name, "-n", ARGOCD, note, "--overwrite")


def synced(health: str, without: str = "") -> Callable[[dict], bool]:
    """Return whether an Application is as git says, of this health, and does not hold the object of a name any more."""

    def look(one: dict) -> bool:
        names = {resource["name"] for resource in one.get("status", {}).get("resources", [])}
        ended = operation(one)[1] == "Succeeded"
        return ended and state(one) == ("Synced", health) and without not in names

    return look


def becomes(name: str, wanted: Callable[[dict], object], what: str) -> dict:
    """Wait until an Application is as wanted, and return it."""
    last: dict = {}

    def look() -> object:
        nonlocal last
        last = application(name)
        return last and wanted(last)

    until(lambda: f"{name} {what}: {trouble(last)}", look)
    return last


def objects(one: dict) -> dict[str, dict]:
    """Return all that an Application consists of, as it is in the cluster, by kind and name."""
    found = {}
    for part in one["status"]["resources"]:
        kind = f"{part['kind']}.{part['group']}" if part.get("group") else part["kind"]
        if part["kind"] != "Namespace":
            (thing,) = get(kind.lower(), part["namespace"], fields=f"metadata.name={part['name']}")
            found[f"{part['kind']}/{part['name']}"] = thing
    return found


class Seen(NamedTuple):
    """One state that an Application was seen in, and when (in seconds of the monotonic clock)."""

    time: float
    sync: str
    health: str
    operation: tuple[str, str]


class Watch:
    """Every state that Applications go through, from the API server's own stream of changes, but for starved checks."""

    def __init__(self) -> None:
        self.seen: dict[str, list[Seen]] = {}
        self.stop = cluster.watch(self._note, "applications.argoproj.io", ARGOCD)

    def _note(self, one: dict) -> None:
        if starved(one):
            return
        now = Seen(time.monotonic(), *state(one), operation(one))
        self.seen.setdefault(one["metadata"]["name"], []).append(now)

    def show(self, name: str, health: str) -> None:
        """Wait until it shows, too, that an Application is in sync with git and of a health."""
        until(f"the watch shows that {name} is {health}", lambda: self.healths(name)[-1:] == [health])

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


@dataclass
class World:
    """The two repositories, the names in Argo CD, and what was measured."""

    team: Path
    namespace: str
    image: Mapping[str, str]
    watch: "Watch"
    files: dict[str, str]  # application.yaml and applicationset.yaml for these repositories
    rows: list[tuple[str, str]] = field(default_factory=list)

    def app(self, release: str) -> str:
        """Name the Application of a run, or that of the data."""
        return f"{self.namespace}-{release}" if release == "data" else f"{self.namespace}-run-{release}"

    def values(self, shipped: str, *layers: helm.Values) -> str:
        """Return one of the shipped values files with what makes it fit this cluster."""
        values = yaml.safe_load((DEPLOY / shipped).read_text())
        return yaml.safe_dump(helm.merged(values, {"global": {"image": dict(self.image)}}, *layers))

    def write(self, files: Mapping[str, str | None], message: str) -> None:
        """Commit to the team's repository."""
        commit(self.team, {f"deploy/argocd/{name}": text for name, text in files.items()}, message)

    def note(self, what: str, result: float | str) -> None:
        """Put a row into the table."""
        self.rows.append((what, result if isinstance(result, str) else f"{result:.0f} s"))


def chart_files() -> dict[str, str]:
    """Return the chart's files as they are in this tree."""
    paths = [path for path in helm.CHART.rglob("*") if path.is_file()]
    return {str(path.relative_to(helm.ROOT)): path.read_text() for path in paths}


def changed(name: str, replace: Mapping[str, str]) -> str:
    """Return a shipped file with some texts replaced, each of which must be in it."""
    text = (DEPLOY / name).read_text()
    for old, new in replace.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def table(rows: list[tuple[str, str]]) -> str:
    """Lay out what was measured."""
    return "\n".join(f"{what} | {result}" for what, result in [("what", "measured"), *rows]) + "\n"
