"""The files of deploy/argocd in a real Argo CD: claims and dataset by an Application, runs by an ApplicationSet.

Its application, applicationset and repository controllers sync the chart of this tree from git repositories that the
test makes. The table of what was measured is printed, and written to build/argocd.txt.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.charts import helm
from tests.e2e import cluster, gitops, owners
from tests.e2e.cluster import get, kubectl, until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not cluster.OWN, reason="it starts Argo CD in the one-node cluster"),
]
DEPLOY = helm.ROOT / "deploy" / "argocd"
STEPS, MORE = 6, 9
DATASET = {
    "global": {
        "storage": {"data": {"size": "1Gi", "storageClass": ""}, "results": {"size": "5Gi", "storageClass": ""}},
        "secrets": {"kaggle": {"existingSecret": ""}},
        "dataset": {"name": "fashion"},
    },
    "dataset": {"resources": {"requests": {"cpu": "100m", "memory": "256Mi"}}},
}
RUN = {
    "global": {
        "dataset": {"name": "fashion"},
        "training": {
            "nodes": 1, "gpusPerNode": 0, "processesPerNode": 1, "recipe": "demo", "shmSize": "64Mi",
            "config": {"max_steps": STEPS, "batch": {"global": 16}, "wandb": {"mode": "off"}},
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "4Gi"}},
        },
    },
}  # fmt: skip
# `shutil.copy` cannot be called as a model is: a Python error, and so exit code 1
BROKEN = {"global": {"training": {"name": "broken", "config": {"model": {"name": "shutil:copy"}}}}}


@dataclass
class World:
    """The two repositories, the names in Argo CD, and what was measured."""

    team: Path
    namespace: str
    image: Mapping[str, str]
    watch: gitops.Watch
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
        gitops.commit(self.team, {f"deploy/argocd/{name}": text for name, text in files.items()}, message)

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


def wait_gone(names: Mapping[str, str], seconds: float) -> None:
    """Wait until no Application of these is left."""
    until(f"{names} are gone", lambda: not any(gitops.application(name) for name in names.values()), seconds)


@pytest.fixture(scope="module")
def world(argocd, namespace, archive, image, tmp_path_factory) -> Iterator[World]:
    """Repositories on this machine, and the health checks in Argo CD; all is deleted afterwards."""
    folder, place = tmp_path_factory.mktemp("git"), f"{namespace}-gitops"
    gitops.commit(folder / "chart", chart_files(), "The chart", tag="v0.1.0")
    marks = "".join(f", {key}: {value}" for key, value in owners.LABELS.items())
    both = {
        "https://git.example.com/platform/trainyard.git": f"file://{folder}/chart",
        "https://git.example.com/vision/training.git": f"file://{folder}/team",
        "namespace: vision": f"namespace: {place}",
        "\n  namespace: argocd\n": f"\n  namespace: {gitops.ARGOCD}\n  labels: {{{marks[2:]}}}\n",
    }
    files = {
        "application.yaml": changed("application.yaml", both | {
            "\n  name: imagenet": f"\n  name: {place}-data", "enforce: restricted": f"enforce: restricted{marks}",
        }),
        "applicationset.yaml": changed("applicationset.yaml", both | {
            "\n  name: runs": f"\n  name: {place}", "name: 'run-": f"name: '{place}-run-",
        }),
    }  # fmt: skip
    kubectl("patch", "configmap", "argocd-cm", "-n", gitops.ARGOCD, "--type", "merge",
            "--patch-file", "deploy/argocd/health-checks.yaml")  # fmt: skip
    made = World(folder / "team", place, image, gitops.Watch(), files)
    source = {"kind": "http", "url": f"http://archive.{namespace}/fashion.zip"}
    made.write(
        {"dataset/values.yaml": made.values("dataset/values.yaml", DATASET, {"dataset": {"source": source}})}, "Data"
    )
    try:
        yield made
    finally:
        text = table(made.rows)
        (helm.ROOT / "build" / "argocd.txt").write_text(text)
        print(f"\n{text}")
        made.watch.stop()
        for kind, name in (("applicationset", place), ("application", made.app("data"))):
            kubectl("delete", kind, name, "-n", gitops.ARGOCD, "--ignore-not-found", "--wait=false")
        names = {release: made.app(release) for release in ("data", "ddp", "mpi", "broken")}
        try:
            wait_gone(names, 60)
        except AssertionError:  # as when a sync is tried again and again
            for name in names.values():
                gitops.abandon(name)
        kubectl("delete", "namespace", place, "--ignore-not-found", "--wait=false")


def table(rows: list[tuple[str, str]]) -> str:
    """Lay out what was measured."""
    return "\n".join(f"{what} | {result}" for what, result in [("what", "measured"), *rows]) + "\n"


def synced(health: str, without: str = "") -> Callable[[dict], bool]:
    """Return whether an Application is as git says, of this health, and does not hold the object of a name any more."""

    def look(one: dict) -> bool:
        names = {resource["name"] for resource in one.get("status", {}).get("resources", [])}
        ended = gitops.operation(one)[1] == "Succeeded"
        return ended and gitops.state(one) == ("Synced", health) and without not in names

    return look


def job(world: World, release: str) -> dict:
    """Return the one training job of a release."""
    kinds = "pytorchjobs.kubeflow.org,mpijobs.kubeflow.org"
    found = get(kinds, world.namespace, "-l", f"app.kubernetes.io/instance={release}")
    found = [one for one in found if "deletionTimestamp" not in one["metadata"]]
    assert len(found) == 1, [one["metadata"]["name"] for one in found]
    return found[0]


def log(world: World, release: str) -> str:
    """Return what the pod of a release's job that tells of its progress printed."""
    name = job(world, release)["metadata"]["name"]
    pods = get("pods", world.namespace, "-l", f"training.kubeflow.org/job-name={name}")
    pods = [pod["metadata"]["name"] for pod in pods if "-worker-" not in pod["metadata"]["name"]]
    return "".join(kubectl("logs", pod, "-n", world.namespace, check=False) for pod in pods)


def claims(world: World) -> dict[str, str]:
    """Return the uids of the claims, by name."""
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in get("pvc", world.namespace)}


@pytest.fixture(scope="module")
def ran(world) -> Mapping[str, dict]:
    """Data and three runs, synced at once and followed to their end; the Applications by release."""
    start = time.monotonic()
    world.write(
        {
            "runs/ddp.yaml": world.values("runs/seed-2.yaml", RUN, {"global": {"training": {"name": "ddp"}}}),
            "runs/mpi.yaml": world.values("runs/horovod.yaml", RUN, {"global": {"training": {"name": "mpi"}}}),
            "runs/broken.yaml": world.values("runs/seed-2.yaml", RUN, BROKEN),
        },
        "Three runs",
    )
    kubectl("apply", "-f", "-", stdin=world.files["application.yaml"])
    until("Argo CD has made the namespace", lambda: kubectl("get", "ns", world.namespace, "--ignore-not-found"), 60)
    kubectl("apply", "-f", "-", stdin=world.files["applicationset.yaml"])
    found = {"data": gitops.becomes(world.app("data"), synced("Healthy"), "is healthy", 180)}
    for release, health in (("ddp", "Healthy"), ("mpi", "Healthy"), ("broken", "Degraded")):
        found[release] = gitops.becomes(world.app(release), synced(health), f"is {health}", 180)
    for release, what in (("data", "dataset"), ("ddp", "PyTorchJob"), ("mpi", "MPIJob"), ("broken", "exit code 1")):
        health = "Degraded" if release == "broken" else "Healthy"
        begun, end = world.watch.first(world.app(release), start, "Progressing"), world.watch.last(world.app(release))
        world.note(f"from commit to Progressing and {health}: {what}", f"{begun:.0f} s, {end.time - start:.0f} s")
    return found


@pytest.mark.parametrize("release", ["data", "ddp", "mpi"])
def test_a_sync_goes_over_progressing_to_healthy(world, ran, release):
    assert world.watch.healths(world.app(release)) == ["Progressing", "Healthy"]
    assert not ran[release]["status"].get("conditions")


def test_a_failed_job_is_degraded_with_its_reason(world, ran):
    (text,) = gitops.said(ran["broken"], "PyTorchJob")
    assert text.startswith("PyTorchJobFailed: ")
    assert f"scripts/why broken -n {world.namespace} says more" in text
    assert "TypeError" in log(world, "broken")
    world.note("what Argo CD says of it", text)


def versions(world: World) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return uid, generation and resourceVersion of every object of every Application, and its operation."""
    found = {}
    for release in ("data", "ddp", "mpi", "broken"):
        one = gitops.application(world.app(release))
        found[release] = {"operation": (*gitops.operation(one), str(len(one["status"]["history"])))}
        for name, thing in gitops.objects(one).items():
            meta = thing["metadata"]
            found[release][name] = (meta["uid"], str(meta.get("generation")), meta["resourceVersion"])
    return found


def keep_quiet(world: World, seconds: float) -> None:
    """Have Argo CD compare everything anew, time and again, and see that it changes nothing."""
    before, start, looks = versions(world), time.monotonic(), 0
    while time.monotonic() - start < seconds:
        for release in before:
            gitops.refresh(world.app(release), "hard" if looks % 2 else "normal")
        looks += 1
        time.sleep(5)
    assert versions(world) == before
    for release, things in before.items():
        health = "Degraded" if release == "broken" else "Healthy"
        states = {(one.sync, one.health) for one in world.watch.seen[world.app(release)] if one.time > start}
        assert states == {("Synced", health)}, release
        assert len(things) > 1
    things = sum(len(one) - 1 for one in before.values())
    world.note(
        f"refreshed {looks} times in {seconds:.0f} s, self-heal on", f"{things} objects: no operation, no change"
    )


def test_refresh_and_self_heal_change_nothing_for_a_minute(world, ran):
    keep_quiet(world, 60)


@pytest.mark.soak
def test_refresh_and_self_heal_change_nothing_for_five_minutes(world, ran):
    keep_quiet(world, 300)


def test_self_heal_is_at_work(world, ran):
    """Else the minute before would say nothing."""
    (name,) = [one for one in gitops.objects(ran["ddp"]) if one.startswith("ConfigMap/")]
    what = ("configmap", name.split("/")[1], "-n", world.namespace)
    whole, start = kubectl("get", *what, "-o", "jsonpath={.data}"), time.monotonic()
    kubectl("patch", *what, "--type", "merge", "-p", '{"data": {"config.json": "{}"}}')
    until("it is as git says again", lambda: kubectl("get", *what, "-o", "jsonpath={.data}") == whole, 30)
    world.note("a ConfigMap changed by hand is as git says again", time.monotonic() - start)


@pytest.fixture(scope="module")
def merged(world, ran) -> dict[str, str]:
    """Merged changes: a longer run, a run under another name, and one taken away; the names of the jobs before."""
    before = {release: job(world, release)["metadata"]["name"] for release in ("ddp", "mpi", "broken")}
    longer = {"global": {"training": {"name": "ddp", "config": {"max_steps": MORE}}}}
    files = {
        "runs/ddp.yaml": world.values("runs/seed-2.yaml", RUN, longer),
        "runs/mpi.yaml": world.values("runs/horovod.yaml", RUN, {"global": {"training": {"name": "mpi-again"}}}),
        "runs/broken.yaml": None,
    }
    start = time.monotonic()
    world.write(files, "Longer, anew, and away")
    gitops.regenerate(world.namespace)
    for release in ("ddp", "mpi"):
        gitops.refresh(world.app(release))

    for release, what in (("ddp", "more steps: resumed"), ("mpi", "another name: begun anew")):
        gitops.becomes(world.app(release), synced("Healthy", before[release]), "has another job, which has ended", 120)
        world.note(f"merged change, {what}", world.watch.last(world.app(release)).time - start)
    until("the run that was taken away is gone", lambda: not gitops.application(world.app("broken")), 60)
    return before


def test_a_merged_change_replaces_the_job_and_goes_on_as_its_values_say(world, merged):
    jobs = {release: job(world, release)["metadata"]["name"] for release in ("ddp", "mpi")}
    assert not set(jobs.values()) & set(merged.values())
    assert f"resumed at step {STEPS}" in log(world, "ddp")
    assert max(int(step) for step in re.findall(r"step +(\d+)/", log(world, "ddp"))) == MORE
    assert "resumed" not in log(world, "mpi")


def test_a_file_taken_away_takes_its_job_away(world, merged):
    every = get("pytorchjobs.kubeflow.org", world.namespace)
    assert merged["broken"] not in {one["metadata"]["name"] for one in every}


@pytest.fixture(scope="module")
def again(world, merged, namespace) -> dict[str, str]:
    """All Applications deleted, the archive's server too, and then all applied again; the claims before."""
    before = claims(world)
    names = {release: world.app(release) for release in ("data", "ddp", "mpi")}
    start = time.monotonic()
    kubectl("delete", "applicationset", world.namespace, "-n", gitops.ARGOCD)
    kubectl("delete", "application", names["data"], "-n", gitops.ARGOCD, "--wait=false")
    kubectl("delete", "pod", "archive", "-n", namespace, "--wait=false")
    wait_gone(names, 60)
    left = get("jobs,pytorchjobs.kubeflow.org,mpijobs.kubeflow.org", world.namespace)
    assert not [one["metadata"]["name"] for one in left if "deletionTimestamp" not in one["metadata"]]
    assert claims(world) == before, "a claim went with its Application"
    world.note("deleted: jobs gone, claims and results there", time.monotonic() - start)
    until("no pod is left", lambda: not get("pods", world.namespace), 60)
    start = time.monotonic()
    for text in world.files.values():
        kubectl("apply", "-f", "-", stdin=text)
    kinds = {"data": "dataset, its archive's server gone", "ddp": "finished PyTorchJob", "mpi": "finished MPIJob"}
    for release, what in kinds.items():
        gitops.becomes(names[release], synced("Healthy"), "is healthy again", 120)
        world.note(f"made anew: {what}", world.watch.last(names[release]).time - start)
    return before


def test_the_data_is_not_downloaded_again(world, again):
    assert claims(world) == again
    (name,) = [one["metadata"]["name"] for one in get("jobs", world.namespace, "-l", "app.kubernetes.io/name=dataset")]
    said = kubectl("logs", f"job/{name}", "-n", world.namespace)
    assert "is complete" in said, said
    world.note("what the dataset's Job says", said.strip().splitlines()[-1])


@pytest.mark.parametrize("release", ["ddp", "mpi"])
def test_a_finished_run_is_not_run_again(world, again, release):
    said = log(world, release)
    assert "nothing to do" in said, said
    pods = get("pods", world.namespace, "-l", f"app.kubernetes.io/instance={release}")
    assert pods
    world.note(f"what {release} says", next(line for line in said.splitlines() if "nothing to do" in line))
