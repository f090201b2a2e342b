"""The whole pipeline: helm install, jobs of all three kinds to the end, what they leave, uninstall, install again."""

import pytest

from tests import documents
from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl, lines

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(4), pytest.mark.takes(200)]
RELEASE = "demo"
JOBS = ("pytorchjob", "mpijob")


@pytest.fixture(scope="module")
def results(namespace):
    """What `make demo` leaves, run in a separate namespace."""
    own = {"make demo": f"make demo NAMESPACE={namespace} RELEASE={RELEASE}"}
    done = cluster.run("bash", "-euc", documents.text("README.md", "make demo", own))
    print(done.stdout)
    return {job: cluster.ROOT / "build" / "demo" / job for job in JOBS}


def summary(folder):
    return cluster.json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("job", JOBS)
def test_four_ranks_on_two_nodes_train_to_a_real_accuracy(results, job):
    found = summary(results[job])
    assert found["status"] == "finished"
    assert found["world_size"] == 4
    assert len({rank["host"] for rank in found["ranks"]}) == 2
    assert sorted(rank["rank"] for rank in found["ranks"]) == [0, 1, 2, 3]
    assert found["top1"] >= 83


@pytest.mark.shows("trains with DDP", "training-operator")
@pytest.mark.shows("trains with Horovod", "mpi-operator")
def test_both_operators_reach_the_same_accuracy(results):
    first, second = (summary(results[job])["top1"] for job in JOBS)
    assert abs(first - second) <= 2


def first_losses(folder):
    """Of the demo's warm-up, whose learning rate does not depend on the number of epochs."""
    return [m["loss"] for m in lines(folder / "metrics.jsonl") if m["event"] == "train"][:20]


def test_the_first_losses_of_ddp_and_horovod_agree(results):
    ddp, horovod = (first_losses(results[job]) for job in JOBS)
    assert len(ddp) == 20
    assert ddp == pytest.approx(horovod, rel=1e-6)  # equal but for a rare last bit: gradients are summed in fp64


@pytest.mark.shows("loads what pods published", "torch", "torchvision")
@pytest.mark.parametrize("job", JOBS)
def test_timm_loads_what_was_published(results, job):
    import timm
    import torch

    model = timm.create_model(f"local-dir:{results[job] / 'published'}", pretrained=True)
    published = torch.load(results[job] / "published" / "model.pth", weights_only=True)
    assert all(torch.equal(tensor, published[name]) for name, tensor in model.state_dict().items())
    assert (results[job] / "published" / "model.safetensors").stat().st_size > 1e6
    report = (results[job] / "report.html").read_text()
    assert "<svg" in report
    assert "http://" not in report.replace("http://www.w3.org", "")


def test_the_namespace_refused_no_pod(results, namespace):
    refused = [e["message"] for e in get("events", namespace) if "violates PodSecurity" in e.get("message", "")]
    assert refused == []
    for pod in get("pods", namespace):
        assert pod["spec"]["automountServiceAccountToken"] is False


def test_why_finds_nothing_to_mend_in_a_finished_release(results, namespace):
    done = cluster.run("trainyard", "why", RELEASE, "-n", namespace)
    assert "remedy" not in done.stdout, done.stdout
    assert "Succeeded" in done.stdout


def test_the_commands_of_the_notes_run(results, namespace):
    notes = cluster.helm("get", "notes", RELEASE, "-n", namespace).stdout.partition("Next:")[2].partition("\n\n")[0]
    commands = [line.partition("   #")[0].strip() for line in notes.strip().splitlines()]
    assert len([command for command in commands if command.startswith("kubectl ")]) >= 3
    assert commands.pop() == f"helm uninstall {RELEASE} -n {namespace}"  # a later test's
    for command in commands:
        said = cluster.run("sh", "-c", command)
        assert said.stdout or "events" in command, f"{command} prints nothing"


@pytest.mark.shows("trains with DDP", "Kubeflow Trainer", "JobSet")
def test_a_trainjob_takes_the_same_steps(results, namespace, install, trainer_v2, tmp_path):
    install(RELEASE, namespace, "--set", "global.training.operator=trainjob,global.training.config.epochs=1")
    print(cluster.follow(RELEASE, namespace))
    cluster.run("trainyard", "fetch", RELEASE, f"runs/{RELEASE}", tmp_path, "-n", namespace)
    found = summary(tmp_path)
    assert (found["status"], found["world_size"]) == ("finished", 4)
    assert len({rank["host"] for rank in found["ranks"]}) == 2
    assert first_losses(tmp_path) == pytest.approx(first_losses(results["pytorchjob"]), rel=1e-6)
    (job,) = get("trainjobs", namespace)
    told = job["status"]["trainerStatus"]
    assert (told["progressPercentage"], told["estimatedRemainingSeconds"]) == (100, 0)
    assert {one["name"] for one in told["metrics"]} >= {"loss", "top1", "images_per_second"}


@pytest.mark.shows("installs the chart, trains, and keeps data and results", "Kubernetes")
def test_uninstall_keeps_data_and_results_and_install_again_does_nothing_twice(results, namespace, install):
    cluster.helm("uninstall", RELEASE, "-n", namespace, "--wait")
    assert {c["metadata"]["name"] for c in get("pvc", namespace)} == {f"{RELEASE}-data", f"{RELEASE}-results"}
    cluster.until("pods gone", lambda: len(get("pods", namespace, f"app.kubernetes.io/instance={RELEASE}")) == 0)

    install(RELEASE, namespace, "--set", "mpijob.runPolicy.suspend=false")
    cluster.follow(RELEASE, namespace)
    pods = get("pods", namespace, f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/name=dataset")
    assert pods
    for pod in pods:
        assert "nothing downloaded" in cluster.log(pod["metadata"]["name"], namespace, "prepare")
    masters = get("pods", namespace, "training.kubeflow.org/replica-type=master")
    assert "is finished" in kubectl("logs", masters[0]["metadata"]["name"], "-n", namespace)
