"""The values by which docs/interruptions.md makes a lost node cost less reach every pod that trains."""

import re

import yaml

from . import helm

PAGE = (helm.ROOT / "docs" / "interruptions.md").read_text()


def pods(values: helm.Values) -> list[helm.Values]:
    """Specs of a PyTorchJob's pods."""
    found = [one for one in helm.documents(helm.template(values)) if one["kind"] == "PyTorchJob"]
    return [one["template"]["spec"] for one in found[0]["spec"]["pytorchReplicaSpecs"].values()]


def test_the_documents_values() -> None:
    block = re.search(r"```yaml\n(global:\n  training:\n    config: \{checkpoint.*?)```", PAGE, re.S)
    assert block
    values = yaml.safe_load(block[1])
    training = values["global"]["training"]
    training |= {"nodes": 2, "processesPerNode": 2, "recipe": "demo"}
    values["global"]["image"] = {"registry": "registry.example.com/team", "tag": "0.1.0"}
    values["dataset"] = {"enabled": False}
    made = pods(values)
    assert len(made) == 2
    for pod in made:
        taints = {one["key"]: one["tolerationSeconds"] for one in pod["tolerations"]}
        assert taints == {"node.kubernetes.io/not-ready": 15, "node.kubernetes.io/unreachable": 15}
        assert pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]
        main = next(one for one in pod["containers"] if one["name"] == "pytorch")
        assert {"name": "PET_MAX_RESTARTS", "value": "100"} in main["env"]
