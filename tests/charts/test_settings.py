"""What the chart hands to the trainers is what the trainers accept, for every values file that the project shows."""

import json

import pytest

from trainyard import config
from trainyard.training.optimizer import peak_learning_rate

from . import helm

CLUSTERS = sorted((helm.ROOT / "examples" / "clusters").glob("*.yaml"))


def worlds(objects):
    """Processes of each job."""
    for one in objects:
        spec = one.get("spec", {})
        if one["kind"] == "PyTorchJob":
            nodes = sum(replica["replicas"] for replica in spec["pytorchReplicaSpecs"].values())
            yield nodes * int(spec["nprocPerNode"])
        if one["kind"] == "MPIJob":
            yield spec["mpiReplicaSpecs"]["Worker"]["replicas"] * spec["slotsPerWorker"]
        if one["kind"] == "TrainJob":
            yield spec["trainer"]["numNodes"] * spec["trainer"]["numProcPerNode"]


@pytest.mark.parametrize("values", [*helm.CI, *helm.EXAMPLES, *CLUSTERS], ids=lambda path: path.stem)
def test_the_trainers_accept_the_settings_of_every_values_file(values):
    objects = helm.documents(helm.template(values))
    maps = [one["data"] for one in objects if one["kind"] == "ConfigMap" and "config.json" in one["data"]]
    assert maps or not list(worlds(objects))
    for text in (data["config.json"] for data in maps):
        if (tree := json.loads(text)) == {}:  # what evaluates another release's run asks for no length
            continue
        settings = config.build(tree)
        for world in worlds(objects):
            assert config.resolve_global_batch(settings, world) >= world


@pytest.mark.parametrize("nodes", [1, 2, 8])
def test_with_a_batch_per_process_batch_and_learning_rate_grow_with_the_nodes(nodes):
    values = helm.merged(
        helm.yaml.safe_load((helm.ROOT / "examples" / "weak-scaling.yaml").read_text()),
        helm.at("global.training.nodes", nodes),
    )
    objects = helm.documents(helm.template(values))
    (world,) = worlds(objects)
    settings = config.build(json.loads(helm.only(helm.template(values), "ConfigMap")["data"]["config.json"]))
    batch = config.resolve_global_batch(settings, world)
    assert (world, batch) == (8 * nodes, 2048 * nodes)
    assert peak_learning_rate(settings.optimizer, batch) == pytest.approx(2.048 * nodes)
