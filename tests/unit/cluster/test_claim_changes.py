"""What `trainyard up` says of a claim that an upgrade cannot change, before Helm asks the API server."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.fakes.apiserver import Cluster
from tests.unit.cluster import things
from trainyard.cluster import claim_changes, up

ROOT = Path(__file__).resolve().parents[3]
VALUES = {
    "global": {
        "image": {"registry": "registry.example.com/team", "tag": "0.1.0"},
        "training": {"nodes": 1, "processesPerNode": 1},
        "storage": {"data": {"size": "100Mi"}, "results": {"size": "100Mi"}},
    },
    "dataset": {"enabled": False},
}


def claim(
    name: str = "run-data", size: str = "100Mi", *, capacity: str = "", bound: bool = True, **spec: object
) -> dict:
    """Return a claim that Helm has made for the release run."""
    meta = things.meta(name, "run", "storage")
    meta["annotations"] = {"meta.helm.sh/release-name": "run", "meta.helm.sh/release-namespace": "vision"}
    wanted = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": size}}, **spec}
    status = {"phase": "Bound", "capacity": {"storage": capacity or size}} if bound else {"phase": "Pending"}
    return {"kind": "PersistentVolumeClaim", "metadata": meta, "spec": wanted, "status": status}


@pytest.fixture
def upgrade(here: Cluster, tmp_path: Path, ended: Callable) -> Callable[..., tuple[int, str]]:
    """Return a function that calls `up` with values, where these claims are: exit code and errors."""
    here.put("storageclasses", {"metadata": {"name": "nfs"}, "allowVolumeExpansion": True})
    here.put("storageclasses", {"metadata": {"name": "fixed"}})

    def run(held: list[dict], *settings: str) -> tuple[int, str]:
        for one in held:
            here.put("persistentvolumeclaims", one)
        path = tmp_path / "values.yaml"
        path.write_text(yaml.safe_dump(VALUES))
        more = [part for one in settings for part in ("--set", one)]
        chart = ("--chart", str(ROOT / "charts/trainyard"))
        code, _, err = ended(up.main, "run", "-f", str(path), *chart, "-n", "vision", "--no-follow", *more)
        return code, err

    return run


DATA = "global.storage.data"
FIRST = "if it holds nothing, kubectl delete pvc run-data first"
REFUSED = {
    "enlarged by hand": (
        claim(size="200Mi"), [],
        f"its size is 200Mi, and values say 100Mi, and a claim never shrinks: write {DATA}.size: 200Mi",
    ),
    "of a class that does not grow": (
        claim(storageClassName="fixed"), [f"{DATA}.size=1Gi"],
        f"its size is 100Mi, and values say 1Gi, and its StorageClass does not let it grow: write {DATA}.size: 100Mi",
    ),
    "of a volume made by hand": (
        claim(storageClassName=""), [f"{DATA}.size=1Gi"], "its StorageClass does not let it grow",
    ),
    "not bound": (
        claim(bound=False), [f"{DATA}.size=1Gi"], "it does not change before the claim is bound: write",
    ),
    "another class": (
        claim(storageClassName="nfs"), [f"{DATA}.storageClass=other"],
        f"its storageClass is nfs and never changes, and values say other: write {DATA}.storageClass: nfs, or, {FIRST}",
    ),
    "no class": (
        claim(storageClassName="nfs"), [f"{DATA}.storageClass=-"],
        "its storageClass is nfs and never changes, and values say -",
    ),
    "other modes": (
        claim(bound=False), [f"{DATA}.accessModes={{ReadWriteOnce}}"],
        f"its accessModes is [ReadWriteMany] and never changes, and values say [ReadWriteOnce]: write "
        f"{DATA}.accessModes: [ReadWriteMany], or, {FIRST}",
    ),
    "another volume": (
        claim(volumeName="pv-1"), [f"{DATA}.volumeName=pv-2"], f"write {DATA}.volumeName: pv-1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_change_that_the_api_refuses_is_named_before_helm_is_called(name: str, upgrade: Callable) -> None:
    held, settings, said = REFUSED[name]
    code, err = upgrade([held], *settings)
    assert code == 2
    assert err.startswith("up: persistentvolumeclaim/run-data: ")
    assert said in err


ACCEPTED: dict[str, tuple[list[dict], list[str]]] = {
    "nothing there": ([], []),
    "the same": ([claim(storageClassName="nfs", volumeName="pv-1"), claim("run-results")], []),
    "larger": ([claim(storageClassName="nfs")], [f"{DATA}.size=1Gi"]),
    "of a class that this user cannot find": ([claim(storageClassName="gone")], [f"{DATA}.size=1Gi"]),
    "in other words": ([claim(size="1Gi")], [f"{DATA}.size=1024Mi"]),
    "a volume larger than its claim": ([claim(size="100Mi", capacity="1Ti")], []),
    "the same class": ([claim(storageClassName="nfs")], [f"{DATA}.storageClass=nfs"]),
    "no class, as before": ([claim(storageClassName="")], [f"{DATA}.storageClass=-"]),
    "a claim of one's own": ([claim(size="200Mi")], [f"{DATA}.existingClaim=other", f"{DATA}.size="]),
    "values that the chart refuses": ([claim(size="200Mi")], ["global.training.nodes=two"]),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_all_else_is_left_to_helm(name: str, upgrade: Callable) -> None:
    """The server is none that Helm takes for a cluster."""
    code, err = upgrade(*ACCEPTED[name][:1], *ACCEPTED[name][1])
    assert (code, err.startswith("Error: ")) == (1, True), err


def test_claims_of_others_and_a_cluster_that_refuses_are_left_to_helm(here: Cluster, upgrade: Callable) -> None:
    others = claim(size="200Mi")
    others["metadata"]["annotations"]["meta.helm.sh/release-name"] = "second"
    assert upgrade([others])[0] == 1
    here.fault = lambda path, query: (403, "forbidden") if path.endswith("/persistentvolumeclaims") else None
    assert upgrade([claim(size="200Mi")])[0] == 1


def test_all_that_is_wrong_is_said_at_once() -> None:
    asked = claim(accessModes=["ReadWriteOnce"], storageClassName="other")
    said = list(claim_changes.explain_changes(claim(size="200Mi", storageClassName="nfs"), asked))
    assert [line.partition("its ")[2].split()[0] for line in said] == ["accessModes", "storageClass", "size"]
