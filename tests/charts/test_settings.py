"""What the chart hands to the trainers is what the trainers accept, for every values file that the project shows."""

import json

import pytest

from trainers import config

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
        settings = config.build(json.loads(text))
        for world in worlds(objects):
            assert config.resolve_global_batch(settings, world) >= world
