"""The scripts of examples/sdk through the chart's TrainingRuntime, in a namespace that enforces `restricted`.

They run side by side: DDP and FSDP2 on two nodes, our trainers by a command and by a function, one that never starts.
"""

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests import documents, patience
from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl, until
from trainyard.cluster import up

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(6), pytest.mark.takes(90)]
RUNTIME = "lab"


def without_comment(line: str) -> str:
    """Return a command of the page, to which more may be added."""
    return line.partition(" #")[0].rstrip()


SMALL = (
    "--set data.dir=synthetic --set data.synthetic_samples=64 --set data.image_size=16 --set model.num_classes=10 "
    "--set batch.global=32 --set max_steps=3"
)
# The commands of docs/sdk.md, by script; the three of watch.py one after the other
TWO, ONE, LARGE, OURS, *WATCH = documents.text("sdk.md", "two_nodes.py -n training").splitlines()
JOBS = {  # what follows is quicker than the defaults of the page, not other
    "two": TWO,
    "one": f"{without_comment(ONE)} --epochs 1",
    "large": f"{LARGE} --steps 10",
    "ours": f"{OURS} {SMALL}",
    "sharded": f"{OURS} {SMALL} --set strategy=fsdp --form function",
    "wrong": f"{OURS} --nodes 1 --set optimizer.lr=fast",
    "waits": f"{TWO} --cpu 900 --nodes 1 --timeout 25",
}


def start(command: str, namespace: str, *options: str, **env: str) -> subprocess.Popen[str]:
    """Start a script of examples/sdk."""
    words = [*without_comment(command).replace("-n training", f"-n {namespace}").split(), *options]
    return subprocess.Popen(
        words, cwd=cluster.ROOT, env=cluster.ENV | env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def watching(namespace: str, job: str = "", *options: str, **env: str) -> subprocess.Popen[str]:
    """List all jobs, or follow one, by the page's commands."""
    return start(WATCH[1].replace("JOB", job) if job else WATCH[0], namespace, *options, **env)


@pytest.fixture(scope="module")
def client(namespace: str) -> Any:
    """The SDK's own client."""
    from kubeflow.common.types import KubernetesBackendConfig
    from kubeflow.trainer import TrainerClient

    return TrainerClient(KubernetesBackendConfig(namespace=namespace, config_file=cluster.KUBECONFIG))


def started(client: Any) -> str:
    """Start the runtime's own training; nothing, as long as Trainer's webhook does not know the runtime."""
    from kubeflow.trainer.options import Name

    try:
        return client.train(runtime=RUNTIME, options=[Name("plain")])
    except RuntimeError as error:
        if not up.UNKNOWN_RUNTIME.search(str(error.__cause__)):
            raise
    return ""


@pytest.fixture(scope="module")
def outputs(namespace: str, install, trainer_v2, client) -> Iterator[dict[str, tuple[int, str]]]:
    """Exit code and output of each script, by its job's name."""
    install(RUNTIME, namespace, values="examples/sdk/runtime.yaml")
    until("Trainer knows the runtime", lambda: started(client))
    running = {job: start(JOBS[job], namespace, "--name", job) for job in JOBS}
    try:
        found = {job: patience.communicate(process, beside=cluster.stirring)[0] for job, process in running.items()}
        yield {job: (running[job].returncode, found[job]) for job in JOBS}
    finally:
        for process in running.values():
            process.kill()


def test_a_function_trains_on_two_nodes_with_the_batch_asked_for(outputs) -> None:
    code, output = outputs["two"]
    assert code == 0, output
    assert "[node-0] 2 processes on cpu, 64 samples a step over all of them; weights in /results/runs/two" in output
    assert output.rstrip().endswith("trainjob/two: Complete")


def test_a_function_trains_on_one_node(outputs) -> None:
    code, output = outputs["one"]
    assert code == 0, output
    assert "[node-0] 2 processes on cpu, 32 samples a step" in output


def test_a_model_is_spread_over_two_nodes(outputs) -> None:
    code, output = outputs["large"]
    assert code == 0, output
    assert "2 processes on cpu: this one keeps 529,605 of 1,059,210 parameters" in output


@pytest.mark.shows("starts our trainers through the chart's runtime", "kubeflow")
@pytest.mark.parametrize(("job", "strategy"), [("ours", "ddp"), ("sharded", "fsdp")])
def test_our_trainers_train_by_command_and_by_function(outputs, job: str, strategy: str) -> None:
    code, output = outputs[job]
    assert code == 0, output
    assert f"3 steps of 32, {strategy} on 2 processes" in output
    assert f"published to /results/runs/{job}/published" in output


def test_without_a_trainer_the_runtime_trains_with_the_releases_settings(outputs, namespace: str, client) -> None:
    followed = watching(namespace, "plain")
    said = patience.communicate(followed, beside=cluster.stirring)[0]
    assert followed.returncode == 1, said
    assert re.search(r"plain-node-0-\d-\w+ ended 2: .*/data/", said), said  # it is our trainer that misses its data
    log = [*client.get_job_logs("plain", "node-0"), *client.get_job_logs("plain", "node-1")]
    assert any("2 pods reach each other" in line for line in log), log


def test_versions_that_do_not_fit_are_named(outputs, namespace: str) -> None:
    kubectl(
        "create",
        "configmap",
        "kubeflow-trainer-public",
        "-n",
        namespace,
        "--from-literal=kubeflow_trainer_version=v2.1.0",
    )
    said = patience.communicate(watching(namespace, KUBEFLOW_SYSTEM_NAMESPACE=namespace))[0]
    assert "warning: the cluster's Kubeflow Trainer is v2.1.0" in said
    assert "warning" not in patience.communicate(watching(namespace))[0]


def test_progress_is_shown(outputs, client) -> None:
    _, output = outputs["ours"]
    assert re.search(r"progress: \d+ %.*, loss \d", output), output
    assert not hasattr(client.get_job("ours"), "trainer_status"), "the SDK has it now: use it"


def test_a_wrong_setting_is_told_with_its_exit_code(outputs) -> None:
    code, output = outputs["wrong"]
    assert code == 1, output
    assert "ended 2: optimizer.lr = 'fast'" in output
    assert output.rstrip().endswith("trainjob/wrong: Failed")


def test_what_never_starts_says_why_where_the_sdk_says_nothing(outputs, namespace: str, client) -> None:
    code, output = outputs["waits"]
    assert code == 1
    assert "error: trainjob/waits has not ended in 25 s and continues" in output
    followed = watching(namespace, "waits", "--timeout", "20")  # now that a busy machine has had time to look at it
    said = patience.communicate(followed)[0]
    assert followed.returncode == 1
    assert re.search(r"warning: Pod waits-node-0-0-\S+ FailedScheduling: ", said), said
    assert "error: trainjob/waits has not ended in 20 s and continues" in said
    assert "FailedScheduling" not in [event.reason for event in client.get_job_events("waits")]


def test_the_sdk_reads_runtime_jobs_logs_and_events(outputs, client) -> None:
    assert [
        (runtime.name, runtime.trainer.framework) for runtime in client.list_runtimes() if runtime.name == RUNTIME
    ] == [(RUNTIME, "torch")]
    states = {job.name: job.status for job in client.list_jobs()}
    assert states == {**dict.fromkeys(JOBS, "Complete"), "wrong": "Failed", "waits": "Created", "plain": "Failed"}
    assert any("samples a step" in line for line in client.get_job_logs("two"))
    assert client.get_job_events("two")


def test_the_runtime_alone_trains_nothing(outputs, namespace: str) -> None:
    assert {job["metadata"]["name"] for job in get("trainjobs", namespace)} <= {*JOBS, "plain"}
    assert not get("pytorchjobs", namespace)
    assert {job["metadata"].get("ownerReferences", [{}])[0].get("kind") for job in get("jobs", namespace)} == {"JobSet"}


def test_jobs_are_listed_followed_and_deleted(outputs, namespace: str) -> None:
    listed = patience.communicate(watching(namespace))[0]
    assert "two: Complete" in listed
    assert "waits: Running" in listed
    assert "samples a step" in patience.communicate(watching(namespace, "two"))[0]
    deleted = start(WATCH[2].replace("JOB", "waits"), namespace)
    assert patience.communicate(deleted)[0] == "deleted trainjob/waits\n"
    selector = "jobset.sigs.k8s.io/jobset-name=waits"
    until("its pods go", lambda: not get("pods", namespace, selector))
    again = watching(namespace, "waits")
    assert "error: trainjob/waits: " in patience.communicate(again)[0]
    assert again.returncode == 1


def test_an_unknown_runtime_is_named_beside_those_there_are(outputs, namespace: str) -> None:
    process = start(JOBS["two"].replace("--runtime lab", "--runtime lib"), namespace, "--name", "none")
    said = patience.communicate(process)[0]
    assert re.search(r"error: --runtime lib: .*not found; there are: .*\blab\b", said), said
    assert process.returncode == 1
    assert "/none" not in kubectl("get", "trainjobs", "-n", namespace, "-o", "name")
