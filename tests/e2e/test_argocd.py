"""The files of deploy/argocd in a real Argo CD: claims and dataset by an Application, runs by an ApplicationSet.

Its application, applicationset and repository controllers sync the chart of this tree from git repositories that the
test makes. The table of what was measured is printed, and written to build/argocd.txt.
"""

import re
import time
from collections.abc import Iterator, Mapping

import pytest

from tests import documents
from tests.charts import helm
from tests.e2e import cluster, gitops, owners
from tests.e2e.cluster import get, kubectl, until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.ranks(3),
    pytest.mark.takes(150),
    pytest.mark.usefixtures("argocd", "kueue"),
    pytest.mark.skipif(not cluster.OWN, reason="it starts Argo CD in the one-node cluster"),
]
STEPS, MORE = 6, 9
LOOKS = 15  # at the same objects, one after the other, after which they change no more
# Quantities as people write them, which the API server and Argo CD write otherwise: that must be no drift
DATASET = {
    "global": {
        "storage": {"data": {"size": "1024Mi", "storageClass": ""}, "results": {"size": "5120Mi", "storageClass": ""}},
        "secrets": {"kaggle": {"existingSecret": ""}},
        "dataset": {"name": "fashion"},
    },
    "dataset": {"resources": {"requests": {"cpu": "0.1", "memory": "262144Ki"}}},
}
RUN = {
    "global": {
        "dataset": {"name": "fashion"},
        "training": {
            "nodes": 1, "gpusPerNode": 0, "processesPerNode": 1, "recipe": "demo", "shmSize": "64Mi",
            "config": {"max_steps": STEPS, "batch": {"global": 16}, "wandb": {"mode": "off"}},
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
            "resources": {"requests": {"cpu": 0.15, "memory": "65536Ki"}, "limits": {"memory": "4096Mi"}},
        },
    },
}  # fmt: skip
# There is no queue of this name: Kueue's webhook suspends the job, and nothing resumes it
QUEUED = {"global": {"training": {"name": "queued"}, "scheduling": {"queue": "team-a"}}}
# `shutil.copy` cannot be called as a model is: a Python error, and so exit code 1
BROKEN = {"global": {"training": {"name": "broken", "config": {"model": {"name": "shutil:copy"}}}}}
ENDS = {"data": "Healthy", "ddp": "Healthy", "mpi": "Healthy", "broken": "Degraded", "queued": "Suspended"}


def wait_gone(names: Mapping[str, str]) -> None:
    """Wait until no Application of these is left."""
    until(f"{names} are gone", lambda: not any(gitops.application(name) for name in names.values()))


@pytest.fixture(scope="module")
def world(namespace, archive, image, tmp_path_factory) -> Iterator[gitops.World]:
    """Repositories on this machine, and the health checks in Argo CD; all is deleted afterwards."""
    folder, place = tmp_path_factory.mktemp("git"), f"{namespace}-gitops"
    gitops.commit(folder / "chart", gitops.chart_files(), "The chart", tag="v0.1.0")
    marks = "".join(f", {key}: {value}" for key, value in owners.LABELS.items())
    both = {
        "https://git.example.com/platform/trainyard.git": f"file://{folder}/chart",
        "https://git.example.com/vision/training.git": f"file://{folder}/team",
        "namespace: vision": f"namespace: {place}",
        "\n  namespace: argocd\n": f"\n  namespace: {gitops.ARGOCD}\n  labels: {{{marks[2:]}}}\n",
    }
    files = {
        "application.yaml": gitops.changed("application.yaml", both | {
            "\n  name: imagenet": f"\n  name: {place}-data", "enforce: restricted": f"enforce: restricted{marks}",
        }),
        "applicationset.yaml": gitops.changed("applicationset.yaml", both | {
            "\n  name: runs": f"\n  name: {place}", "name: 'run-": f"name: '{place}-run-",
        }),
    }  # fmt: skip
    patch = documents.text("argocd.md", "patch configmap", {"-n argocd": f"-n {gitops.ARGOCD}"})
    cluster.run("bash", "-euc", patch)
    made = gitops.World(folder / "team", place, image, gitops.Watch(), files)
    source = {"kind": "http", "url": f"http://archive.{namespace}/fashion.zip", "competition": ""}
    made.write(
        {"dataset/values.yaml": made.values("dataset/values.yaml", DATASET, {"dataset": {"source": source}})}, "Data"
    )
    try:
        yield made
    finally:
        text = gitops.table(made.rows)
        (helm.ROOT / "build" / "argocd.txt").write_text(text)
        print(f"\n{text}")
        made.watch.stop()
        for kind, name in (("applicationsets", place), ("applications", made.app("data"))):
            owners.delete(f"{kind}.argoproj.io", name, gitops.ARGOCD)
        names = {release: made.app(release) for release in ENDS}
        for name in filter(gitops.application, names.values()):  # whose sync may be tried again and again
            gitops.abandon(name)
        kubectl("delete", "namespace", place, "--ignore-not-found", "--wait=false")


def job(world: gitops.World, release: str) -> dict:
    """Return the one training job of a release."""
    kinds = "pytorchjobs.kubeflow.org,mpijobs.kubeflow.org"
    found = get(kinds, world.namespace, f"app.kubernetes.io/instance={release}")
    found = [one for one in found if "deletionTimestamp" not in one["metadata"]]
    assert len(found) == 1, [one["metadata"]["name"] for one in found]
    return found[0]


def log(world: gitops.World, release: str) -> str:
    """Return what the pod of a release's job that tells of its progress printed."""
    name = job(world, release)["metadata"]["name"]
    pods = get("pods", world.namespace, f"training.kubeflow.org/job-name={name}")
    pods = [pod["metadata"]["name"] for pod in pods if "-worker-" not in pod["metadata"]["name"]]
    return "".join(cluster.log(pod, world.namespace) for pod in pods)


def claims(world: gitops.World) -> dict[str, str]:
    """Return the uids of the claims, by name."""
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in get("pvc", world.namespace)}


@pytest.fixture(scope="module")
def ran(world) -> Mapping[str, dict]:
    """Data and four runs, synced at once and followed to their end; the Applications by release."""
    start = time.monotonic()
    world.write(
        {
            "runs/ddp.yaml": world.values("runs/seed-2.yaml", RUN, {"global": {"training": {"name": "ddp"}}}),
            "runs/mpi.yaml": world.values("runs/horovod.yaml", RUN, {"global": {"training": {"name": "mpi"}}}),
            "runs/broken.yaml": world.values("runs/seed-2.yaml", RUN, BROKEN),
            "runs/queued.yaml": world.values("runs/horovod.yaml", RUN, QUEUED),
        },
        "Four runs",
    )
    cluster.run("kubectl", "apply", "-f", "-", stdin=world.files["application.yaml"])
    until("Argo CD has made the namespace", lambda: kubectl("get", "ns", world.namespace, "--ignore-not-found"))
    kubectl("apply", "-f", "-", stdin=world.files["applicationset.yaml"])
    found = {}
    for release, health in ENDS.items():
        found[release] = gitops.becomes(world.app(release), gitops.synced(health), f"is {health}")
        world.watch.show(world.app(release), health)
    kinds = {"data": "dataset", "ddp": "PyTorchJob", "mpi": "MPIJob", "broken": "exit code 1", "queued": "in a queue"}
    for release, what in kinds.items():
        name, health = world.app(release), ENDS[release]
        begun = "" if health == "Suspended" else f"Progressing {world.watch.first(name, start, 'Progressing'):.0f} s, "
        world.note(f"from commit on: {what}", f"{begun}{health} {world.watch.last(name).time - start:.0f} s")
    return found


@pytest.mark.parametrize("release", ["data", "ddp", "mpi"])
def test_a_sync_goes_over_progressing_to_healthy(world, ran, release):
    assert world.watch.healths(world.app(release)) == ["Progressing", "Healthy"]
    assert not ran[release]["status"].get("conditions")


def test_a_failed_job_is_degraded_with_its_reason(world, ran):
    (text,) = gitops.said(ran["broken"], "PyTorchJob")
    assert text.startswith("PyTorchJobFailed: ")
    assert f"trainyard why broken -n {world.namespace} says more" in text
    assert "TypeError" in log(world, "broken")
    world.note("what Argo CD says of it", text)


def test_a_job_in_kueues_queue_is_suspended_and_as_git_says(world, ran):
    assert gitops.said(ran["queued"], "MPIJob") == ["waits in Kueue's queue team-a"]
    assert job(world, "queued")["spec"]["runPolicy"]["suspend"] is True
    assert "ignoreDifferences" not in world.files["applicationset.yaml"], "something is left out of the comparison"


def versions(world: gitops.World) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return uid, generation and resourceVersion of every object of every Application, and its operation."""
    found = {}
    for release in ENDS:
        one = gitops.application(world.app(release))
        found[release] = {"operation": (*gitops.operation(one), str(len(one["status"]["history"])))}
        for name, thing in gitops.objects(one).items():
            meta = thing["metadata"]
            found[release][name] = (meta["uid"], str(meta.get("generation")), meta["resourceVersion"])
    return found


def settle(world: gitops.World) -> None:
    """Wait until nobody writes into the namespace's objects: operators note late what has become of a job's pods."""
    kinds, seen = "pods,jobs,pytorchjobs.kubeflow.org,mpijobs.kubeflow.org,pvc", list[set[tuple[str, str]]]()

    def look() -> bool:
        meta = [one["metadata"] for one in get(kinds, world.namespace)]
        seen.append({(one["uid"], one["resourceVersion"]) for one in meta})
        return len(seen) > LOOKS and all(one == seen[-1] for one in seen[-LOOKS:])

    until("nothing changes any more", look)


def keep_quiet(world: gitops.World, seconds: float) -> None:
    """Let Argo CD compare everything again and again, and check that it changes nothing."""
    settle(world)
    before, start, looks = versions(world), time.monotonic(), 0
    while time.monotonic() - start < seconds:
        gitops.refresh(*map(world.app, before), how="hard" if looks % 2 else "normal")
        looks += 1
        time.sleep(5)
    assert versions(world) == before
    for release, things in before.items():
        states = {(one.sync, one.health) for one in world.watch.seen[world.app(release)] if one.time > start}
        assert states == {("Synced", ENDS[release])}, release
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
    """Otherwise the minute before would prove nothing."""
    (name,) = [one for one in gitops.objects(ran["ddp"]) if one.startswith("ConfigMap/")]
    what = ("configmap", name.split("/")[1], "-n", world.namespace)
    whole, start = kubectl("get", *what, "-o", "jsonpath={.data}"), time.monotonic()
    kubectl("patch", *what, "--type", "merge", "-p", '{"data": {"config.json": "{}"}}')
    until("it is as git says again", lambda: kubectl("get", *what, "-o", "jsonpath={.data}") == whole)
    world.note("a ConfigMap changed by hand is as git says again", time.monotonic() - start)


@pytest.fixture(scope="module")
def merged(world, ran) -> dict[str, str]:
    """Merged changes: a longer run, a run under another name, two taken away; the names of the jobs before."""
    before = {release: job(world, release)["metadata"]["name"] for release in ENDS if release != "data"}
    longer = {"global": {"training": {"name": "ddp", "config": {"max_steps": MORE}}}}
    files = {
        "runs/ddp.yaml": world.values("runs/seed-2.yaml", RUN, longer),
        "runs/mpi.yaml": world.values("runs/horovod.yaml", RUN, {"global": {"training": {"name": "mpi-again"}}}),
        "runs/broken.yaml": None,
        "runs/queued.yaml": None,
    }
    start = time.monotonic()
    world.write(files, "Longer, restarted, and removed")
    gitops.regenerate(world.namespace)
    gitops.refresh(world.app("ddp"), world.app("mpi"))
    for release, what in (("ddp", "more steps: resumed"), ("mpi", "another name: from the beginning")):
        ended = gitops.synced("Healthy", before[release])
        gitops.becomes(world.app(release), ended, "has another job, which has ended")
        world.note(f"merged change, {what}", world.watch.last(world.app(release)).time - start)
    wait_gone({release: world.app(release) for release in ("broken", "queued")})
    return before


@pytest.mark.shows("replaces the job of a merged change, which goes on", "Argo CD")
def test_a_merged_change_replaces_the_job_and_continues_as_its_values_say(world, merged):
    jobs = {release: job(world, release)["metadata"]["name"] for release in ("ddp", "mpi")}
    assert not set(jobs.values()) & set(merged.values())
    assert f"resumed at step {STEPS}" in log(world, "ddp")
    assert max(int(step) for step in re.findall(r"step +(\d+)/", log(world, "ddp"))) == MORE
    assert "resumed" not in log(world, "mpi")


def test_a_file_taken_away_takes_its_job_away(world, merged):
    left = {one["metadata"]["name"] for one in get("pytorchjobs.kubeflow.org,mpijobs.kubeflow.org", world.namespace)}
    assert not left & {merged["broken"], merged["queued"]}


@pytest.fixture(scope="module")
def again(world, merged, namespace) -> dict[str, str]:
    """All Applications deleted, the archive's server too, and then all applied again; the claims before."""
    before = claims(world)
    names = {release: world.app(release) for release in ("data", "ddp", "mpi")}
    start = time.monotonic()
    kubectl("delete", "applicationset", world.namespace, "-n", gitops.ARGOCD)
    kubectl("delete", "application", names["data"], "-n", gitops.ARGOCD, "--wait=false")
    kubectl("delete", "pod", "archive", "-n", namespace, "--wait=false")
    wait_gone(names)
    left = get("jobs,pytorchjobs.kubeflow.org,mpijobs.kubeflow.org", world.namespace)
    assert not [one["metadata"]["name"] for one in left if "deletionTimestamp" not in one["metadata"]]
    assert claims(world) == before, "a claim went with its Application"
    world.note("deleted: jobs gone, claims and results there", time.monotonic() - start)
    until("no pod is left", lambda: not get("pods", world.namespace))
    start = time.monotonic()
    for text in world.files.values():
        kubectl("apply", "-f", "-", stdin=text)
    kinds = {"data": "dataset, its archive's server gone", "ddp": "finished PyTorchJob", "mpi": "finished MPIJob"}
    for release, what in kinds.items():
        gitops.becomes(names[release], gitops.synced("Healthy"), "is healthy again")
        world.note(f"recreated: {what}", world.watch.last(names[release]).time - start)
    return before


def test_the_data_is_not_downloaded_again(world, again):
    assert claims(world) == again
    (name,) = [one["metadata"]["name"] for one in get("jobs", world.namespace, "app.kubernetes.io/name=dataset")]
    said = kubectl("logs", f"job/{name}", "-n", world.namespace)
    assert "is complete" in said, said
    world.note("what the dataset's Job says", said.strip().splitlines()[-1])


@pytest.mark.parametrize("release", ["ddp", "mpi"])
def test_a_finished_run_is_not_run_again(world, again, release):
    said = log(world, release)
    assert "nothing to do" in said, said
    pods = get("pods", world.namespace, f"app.kubernetes.io/instance={release}")
    assert pods
    world.note(f"what {release} says", next(line for line in said.splitlines() if "nothing to do" in line))
