"""The commands of docs/kueue.md, each as it stands there, and what it prints. On the one-node cluster alone."""

import re
import subprocess

import pytest
import yaml

from tests import documents
from tests.e2e import cluster, owners
from tests.e2e.cluster import kubectl

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(4), pytest.mark.soak]
NAMESPACE = "team-a"
SECOND = " (2)"
# how a command begins -> what it prints
PRINTS = {
    "export KUBECONFIG=$PWD/build/kubeconfig": "",
    'image="localhost,global.image.tag=$(hack/images/tag)"': "",
    "kubectl create": "namespace/team-a created",
    "kubectl apply": r"clusterqueue\S+/small (created|configured)[\s\S]*mpi-operator-resume",
    "scripts/demo/serve team-a": "http://archive/fashion.zip",
    "helm3 install": "STATUS: deployed",
    "trainyard why run": r"job/run-dataset-\w+ +(Running|admitted|Complete|queued)",
    f"trainyard why run{SECOND}": r"pytorchjob/run-pytorchjob-\w+ +preempted, queued again\n.*pytorchjob/deadline-",
    "trainyard follow deadline": "Succeeded",
    "trainyard follow run": "Succeeded",
}


@pytest.fixture
def clean(kueue):
    """Remove what the page's commands have made; what was there before is somebody's."""
    assert cluster.OWN, "it makes a namespace and a queue of fixed names"
    queues = yaml.safe_load_all((cluster.ROOT / "examples/kueue/cpu/queues.yaml").read_text())
    wide = [(f"{one['kind'].lower()}.kueue.x-k8s.io", one["metadata"]["name"])
            for one in queues if "namespace" not in one["metadata"]]  # fmt: skip
    made = [*wide, ("namespaces", NAMESPACE)]
    for kind, name in made:
        owners.require_absent(kind, name)
    yield
    for kind, name in reversed(made):
        owners.adopt(kind, name)
        owners.delete(kind, name)


def trains() -> bool:
    """Return whether the run's master logs steps."""
    select = "app.kubernetes.io/instance=run,training.kubeflow.org/job-role=master"
    return "step " in kubectl("logs", "-n", NAMESPACE, "-l", select, "-c", "pytorch", "--tail=3", check=False)


def test_the_commands_print_what_the_page_says(clean, image):
    commands = documents.text("kueue.md", "examples/kueue/cpu/run.yaml").splitlines()
    shell = subprocess.Popen(
        ["bash"], cwd=cluster.ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert shell.stdin is not None
    assert shell.stdout is not None
    seen: set[str] = set()
    for line in filter(None, commands):
        if line.startswith("helm3 install deadline"):
            cluster.until("the run trains", trains)
        key = next(key for key in PRINTS if line.startswith(key.removesuffix(SECOND)))
        key = f"{key}{SECOND}" if key in seen and f"{key}{SECOND}" in PRINTS else key
        seen.add(key)
        if key.endswith(SECOND):
            cluster.until("Kueue has decided", lambda key=key: re.search(PRINTS[key], cluster.why("run", NAMESPACE)))
        shell.stdin.write(f"{line}\necho; echo '<<<'\n")
        shell.stdin.flush()
        said = "".join(iter(shell.stdout.readline, "<<<\n"))
        print(f"$ {line}\n{said}")
        assert re.search(PRINTS[key], said), f"{line}\n{said}"
    shell.stdin.close()
    assert seen == PRINTS.keys()
