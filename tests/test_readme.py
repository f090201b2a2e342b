"""README: its values render, and `why` prints what it shows."""

import re

import pytest
import yaml

from tests.charts import helm
from tests.documents import ROOT
from tests.util.explained import NOW, condition, event, thing
from trainyard.cluster import why

pytestmark = pytest.mark.takes(5)

TEXT = (ROOT / "README.md").read_text()
TROUBLE = (ROOT / "docs/troubleshooting.md").read_text()


def block(language: str) -> str:
    """Return the one block of a language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", TEXT, re.S)
    return str(found)


def test_its_values_become_a_job_on_the_nodes_that_they_name() -> None:
    assert len(block("yaml").strip().splitlines()) == 6
    job = helm.only(helm.template(yaml.safe_load(block("yaml")), release="run"), "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert sum(one["replicas"] for one in replicas.values()) == 2
    container = replicas["Master"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert re.fullmatch(r"run-pytorchjob-[0-9a-f]{8}", job["metadata"]["name"])


def test_why_prints_what_it_shows() -> None:
    shown = block("text")
    found = re.search(r"^pytorchjob/(\S+) .*\npod/(\S+) .*\n +because: (.*)\n", shown)
    assert found
    assert f"| `{found[3]}` |" in TROUBLE  # a real cluster printed it
    job = thing("PyTorchJob", found[1], {"conditions": [condition("Created")]})
    placing = [condition("PodScheduled", found[3], "False")]
    labels = {"training.kubeflow.org/job-name": found[1]}
    pod = thing("Pod", found[2], {"phase": "Pending", "conditions": placing}, labels=labels)
    objects = {kind: [] for kind in ("persistentvolumeclaims", "jobs.batch", "mpijobs.kubeflow.org", "missing_kinds")}
    objects |= {"pytorchjobs.kubeflow.org": [job], "pods": [pod], "events": [event(pod, "FailedScheduling", found[3])]}
    assert why.show(why.explain("run", "vision", objects, NOW)) == shown.strip()
