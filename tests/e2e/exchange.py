"""Another version of an operator in the place of the one that the cluster has otherwise (hack/versions)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hack.compatibility.rows import built_by
from tests import ran
from tests.e2e import cluster
from tests.e2e.cluster import get
from trainyard.cluster import inventory

NEWEST = {"trainer": "2.3", "mpi-operator": "0.8"}
CONTROLLERS = {
    "trainer": {
        "Kubeflow Trainer": ("kubeflow-system", "kubeflow-trainer-controller-manager"),
        "JobSet": ("jobset-system", "jobset-controller-manager"),
    },
    "mpi-operator": {"mpi-operator": ("mpi-operator", "mpi-operator")},
}
Versions = dict[str, str]  # by program


def put(add_on: str, version: str) -> Versions:
    """Put a version in the place of the one that is there; return those that its controllers' images have."""
    key = f"TRAINYARD_{add_on.upper().replace('-', '_')}"
    named = "" if version == NEWEST[add_on] else version
    cluster.run("env", f"{key}={named}", "hack/cluster/extra", add_on)
    inventory.definition.cache_clear()
    found = {}
    for program, (space, name) in CONTROLLERS[add_on].items():
        (one,) = [one for one in get("deployments", space) if one["metadata"]["name"] == name]
        image = one["spec"]["template"]["spec"]["containers"][0]["image"]
        found[program] = image.rpartition(":v")[2].rpartition("-")[0]
    return found


def pinned(add_on: str, version: str) -> Versions:
    """Return the versions that are to be there."""
    others = sorted(cluster.ROOT.glob(f"hack/versions/{add_on}-{version}/*/go.mod"))
    built = [built_by(path) for path in others or [cluster.ROOT / "hack/programs/go.mod"]]
    return {name: one[name] for name in CONTROLLERS[add_on] for one in built if name in one}


def cells(versions: Versions, tried: str) -> list[ran.Cell]:
    """Return what a test that tried this has shown of each program."""
    return [(program, version, tried) for program, version in versions.items()]


def note(record_property: Callable[[str, object], None], versions: Versions, tried: str) -> None:
    """Note what a test is about to show of these versions."""
    for cell in cells(versions, tried):
        record_property(ran.PROPERTY, cell)


@contextmanager
def trying(request: pytest.FixtureRequest, add_on: str, version: str, tried: str) -> Iterator[None]:
    """Note that a version failed where the block does: a test whose fixture fails shows nothing itself."""
    try:
        yield
    except Exception:
        soak = request.node.get_closest_marker("soak") is not None
        notes: Any = request.config.pluginmanager.get_plugin("ran")
        notes.note(cells(pinned(add_on, version), tried), passed=False, soak=soak)
        raise
