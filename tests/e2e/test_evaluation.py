"""A release trains and measures its own model by a Job, which waits for it; another measures it again, later."""

import json
from pathlib import Path

import pytest

from tests import documents
from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl, lines, log, until, why

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(2), pytest.mark.takes(60)]
RELEASE = "measured"
WAITS = f"evaluate: waiting for the model of /results/runs/{RELEASE}: "
SETTINGS = [
    "--set", "mpijob.enabled=false,global.training.nodes=1,global.training.processesPerNode=1",
    "--set", "global.training.config.max_steps=12,global.training.config.batch.global=192",
    "--set", "global.training.config.wandb.mode=off",
    "--set", "evaluate.enabled=true,evaluate.processes=2",
    "--set", "evaluate.resources.requests.cpu=50m,evaluate.resources.requests.memory=256Mi",
]  # fmt: skip


def evaluations(namespace: str, release: str = RELEASE) -> list[dict]:
    """Return the release's evaluation Jobs."""
    return get("jobs", namespace, f"app.kubernetes.io/instance={release},app.kubernetes.io/name=evaluate")


def pod_of(namespace: str, release: str = RELEASE) -> str:
    """Return the name of its newest pod, once there is one."""
    pods = get("pods", namespace, f"app.kubernetes.io/instance={release},app.kubernetes.io/name=evaluate")
    return max(pods, key=lambda pod: pod["metadata"]["creationTimestamp"])["metadata"]["name"] if pods else ""


@pytest.fixture(scope="module")
def trained(namespace, archive, install) -> str:
    """A release whose run and evaluation have ended; what the evaluation said."""
    install(RELEASE, namespace, *SETTINGS, "--set", "pytorchjob.runPolicy.suspend=true")
    until("the evaluation waits", lambda: any(WAITS in log(pod, namespace) for pod in [pod_of(namespace)] if pod))
    install(RELEASE, namespace, *SETTINGS)  # the run begins only now: the evaluation's pod may start late
    cluster.follow(RELEASE, namespace)
    return log(pod_of(namespace), namespace)


def test_the_job_waits_for_the_model_and_its_counts_are_the_runs(namespace, trained, tmp_path: Path):
    assert WAITS in trained
    (job,) = evaluations(namespace)
    assert job["status"]["succeeded"] == 1
    cluster.run("trainyard", "fetch", RELEASE, f"runs/{RELEASE}", tmp_path / "run", "-n", namespace)
    cluster.run("trainyard", "fetch", RELEASE, f"evaluations/{RELEASE}/fashion", tmp_path / "fashion", "-n", namespace)
    last = [event for event in lines(tmp_path / "run" / "metrics.jsonl") if event["event"] == "validate"][-1]
    result = json.loads((tmp_path / "fashion" / "result.json").read_text())
    assert (result["samples"], result["correct1"]) == (last["samples"], last["correct"])
    assert (result["top1"], result["top5"]) == (last["top1"], last["top5"])
    assert {path.name for path in (tmp_path / "fashion").iterdir()} == {
        "result.json", "confusion.npz", "evaluation.html",
    }  # fmt: skip


def test_an_unchanged_upgrade_measures_nothing_again_and_another_split_is_a_new_job(namespace, trained, install):
    (before,) = evaluations(namespace)
    install(RELEASE, namespace, *SETTINGS)
    (after,) = evaluations(namespace)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    install(RELEASE, namespace, *SETTINGS, "--set", "evaluate.split=train")
    cluster.follow(RELEASE, namespace)
    (other,) = evaluations(namespace)
    assert other["metadata"]["name"] != before["metadata"]["name"]
    assert "over 2,400 images: /results/evaluations/measured/fashion-train/" in log(pod_of(namespace), namespace)


def test_the_documents_commands_measure_a_run_that_has_finished(namespace, trained, install, tmp_path: Path):
    install(RELEASE, namespace, *SETTINGS, "--set", "evaluate.enabled=false")
    until("the evaluation is gone", lambda: not evaluations(namespace))
    own = {
        "helm upgrade run": f"helm3 upgrade {RELEASE}",
        "-f run.yaml": "--reuse-values",
        "follow run": f"follow {RELEASE}",
        "-n vision": f"-n {namespace}",
        "fetch run evaluations/run ./results": f"fetch {RELEASE} evaluations/{RELEASE} {tmp_path}",
    }
    cluster.run("bash", "-euc", documents.text("evaluate.md", "evaluate.enabled=true", own))
    (job,) = evaluations(namespace)
    assert job["status"]["succeeded"] == 1
    assert (tmp_path / "fashion" / "evaluation.html").exists()


def test_a_run_that_is_not_there_is_named(namespace, trained, install):
    """Another release on the same claims waits, and says for what when its time is over."""
    claims = [
        "--set", f"global.storage.data.existingClaim={RELEASE}-data,global.storage.data.size=",
        "--set", f"global.storage.results.existingClaim={RELEASE}-results,global.storage.results.size=",
        "--set", "dataset.enabled=false,pytorchjob.enabled=false,evaluate.run=nowhere,evaluate.wait=5",
    ]  # fmt: skip
    install("again", namespace, *SETTINGS, *claims)
    said = until(
        lambda: f"the evaluation fails: {why('again', namespace)}",
        lambda: next((text for text in [why("again", namespace)] if "there is no such run yet, after 5 s" in text), ""),
        pause=1.0,
    )
    assert "evaluate.wait" in said
    kubectl("delete", "jobs", "-n", namespace, "-l", "app.kubernetes.io/instance=again")
