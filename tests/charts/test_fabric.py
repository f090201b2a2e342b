"""A fast network without a device plugin: by claims, annotations or the node, with a resource's lock and checks."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from . import helm

TRAINING = "global.training"
CLAIMS = helm.at(f"{TRAINING}.resourceClaims", [{"name": "efa", "resourceClaimTemplateName": "efa-32"}])
NETWORKS = helm.at(f"{TRAINING}.podAnnotations", {"k8s.v1.cni.cncf.io/networks": "roce"})
ENV = helm.at(f"{TRAINING}.rdma.env", [{"name": "FI_PROVIDER", "value": "efa"}])
ROADS = {
    "resource": helm.at(f"{TRAINING}.rdma.resource", "rdma/ib"),
    "claims": helm.merged(CLAIMS, helm.at(f"{TRAINING}.rdma.by", "claims")),
    "annotations": helm.merged(NETWORKS, helm.at(f"{TRAINING}.rdma.by", "annotations")),
    "node": helm.at(f"{TRAINING}.rdma.by", "node"),
    "the privileged node": helm.merged(
        helm.at(f"{TRAINING}.rdma.by", "node"), helm.at(f"{TRAINING}.unrestricted.privileged", True)
    ),
}


def trainers(values: helm.Values) -> dict[str, helm.Values]:
    """The pod specs of training pods, by kind of job; the launcher's too."""
    found = {}
    for one in helm.documents(helm.template(values)):
        spec = one.get("spec", {})
        for role, replica in {**spec.get("pytorchReplicaSpecs", {}), **spec.get("mpiReplicaSpecs", {})}.items():
            found[f"{one['kind']}/{role}"] = replica["template"]["spec"]
        if one["kind"] == "TrainingRuntime":
            job = spec["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
            found[f"TrainingRuntime/{one['metadata']['name']}"] = job["template"]["spec"]
    return found


def main(spec: helm.Values) -> helm.Values:
    container: helm.Values = spec["containers"][0]
    return container


def named(container: helm.Values) -> dict[str, Any]:
    return {one["name"]: one.get("value") for one in container["env"]}


@pytest.mark.parametrize("road", ROADS)
def test_each_road_has_the_lock_and_the_checks(road: str):
    found = trainers(helm.merged(helm.everything(), ENV, ROADS[road]))
    assert len(found) >= 5
    for name, spec in found.items():
        container, security = main(spec), main(spec)["securityContext"]
        if name.endswith("Launcher"):
            assert "IPC_LOCK" not in str(spec)
            continue
        assert named(container)["TRAINYARD_TRANSPORT"] == "rdma", name
        assert named(container)["FI_PROVIDER"] == "efa", name
        if road == "the privileged node":
            assert security == {"privileged": True, "readOnlyRootFilesystem": True}
        else:
            assert security["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
        for other in spec.get("initContainers", []):
            assert "IPC_LOCK" not in str(other["securityContext"])
            assert "privileged" not in other["securityContext"]


@pytest.mark.parametrize("road", ROADS)
def test_a_pod_with_a_fast_network_is_the_job_of_its_network(road: str):
    """The job is another one than without it, and notes tell what `restricted` refuses."""
    values = helm.merged(helm.everything(), ROADS[road])
    plain, fast = (
        {one["metadata"]["name"] for one in helm.documents(helm.template(each)) if one["kind"].endswith("Job")}
        for each in (helm.everything(), values)
    )
    assert len(plain - fast) >= 3
    text = helm.yaml.safe_dump(values)
    said = helm.run("helm4", "install", "demo", helm.CHART, "--dry-run=client", "-f", "-", stdin=text)
    assert "capability IPC_LOCK" in said
    assert ("can take the node over" in said) == (road == "the privileged node")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (helm.at(f"{TRAINING}.rdma.by", "claims"), "name the claims in global.training.resourceClaims"),
        (helm.at(f"{TRAINING}.rdma.by", "annotations"), "name the networks in global.training.podAnnotations"),
        (ENV, "or say in global.training.rdma.by what else brings it: claims, annotations or node"),
        (helm.merged(ROADS["resource"], helm.at(f"{TRAINING}.rdma.by", "node")), "leave one of them out"),
        (helm.at(f"{TRAINING}.rdma.by", "plugin"), "value must be one of '', 'claims', 'annotations', 'node'"),
    ],
    ids=["claims", "annotations", "environment alone", "two roads", "another"],
)
def test_a_road_without_its_devices_is_refused(values: helm.Values, said: str):
    with pytest.raises(helm.HelmError) as caught:
        helm.template(helm.merged(helm.everything(), values))
    assert said in " ".join(str(caught.value).split())


def test_the_documents_own_efa_by_dra_renders():
    page = (helm.ROOT / "docs" / "clusters.md").read_text()
    (block,) = re.findall(r"```yaml\n((?:  .*\n)*?  .*by: claims.*\n(?:  .*\n)*?)  ```", page)
    values = helm.yaml.safe_load((helm.ROOT / "examples/clusters/eks-efa.yaml").read_text())
    spec = trainers(helm.merged(values, helm.yaml.safe_load(block)))["PyTorchJob/Worker"]
    assert spec["resourceClaims"] == [{"name": "efa", "resourceClaimTemplateName": "efa-32"}]
    assert main(spec)["resources"]["claims"] == [{"name": "efa"}]
    assert "vpc.amazonaws.com/efa" not in str(spec)
    assert main(spec)["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert named(main(spec))["TRAINYARD_TRANSPORT"] == "rdma"


SCRIPT = helm.at(f"{TRAINING}.envScript", "/usr/local/gib/scripts/set_nccl_env.sh")


def test_a_script_of_the_node_is_sourced_before_the_trainers(tmp_path: Path):
    values = helm.merged(helm.everything(), SCRIPT)
    script = tmp_path / "set_nccl_env.sh"
    for name, spec in trainers(values).items():
        command = main(spec)["command"]
        plain = main(trainers(helm.everything())[name.replace(name.split("/")[1], _same(name))])["command"]
        if name.endswith("Launcher"):
            assert command[:3] == ["python", "-m", "trainers.mpi"]
            continue
        assert command[:2] == ["bash", "-c"]
        assert command[3:5] == ["/usr/local/gib/scripts/set_nccl_env.sh", "python"]
        assert command[4:] == plain
        script.write_text("export NCCL_NET=gIB\nfalse\n")  # the last line of such a script may be a test
        told = [*command[:3], str(script), "env"]
        assert "NCCL_NET=gIB" in subprocess.run(told, capture_output=True, text=True, check=True).stdout
        script.unlink()
        done = subprocess.run(told, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr == f"error: global.training.envScript: {script} cannot be read\n"


def _same(name: str) -> str:
    """The name, in values without the script, of what has another hash with it."""
    kind, own = name.split("/")
    if kind != "TrainingRuntime" or own == "demo":
        return own
    return next(one.split("/")[1] for one in trainers(helm.everything()) if one.startswith("TrainingRuntime/demo-"))


def test_a_users_setting_of_mpi_wins_over_a_runtimes_own():
    setting = {"name": "OMPI_MCA_btl", "value": "tcp,self"}
    values = helm.at("global.training", {"operator": "trainjob", "config": {"strategy": "horovod"}, "env": [setting]})
    found = trainers(helm.merged(helm.everything(), values))
    assert "TrainingRuntime/demo" in found
    for name, spec in found.items():
        names = [one["name"] for one in main(spec)["env"]]
        assert len(names) == len(set(names)), name
        assert setting in main(spec)["env"]


def test_libraries_of_a_daemon_reach_the_preflight():
    volumes = helm.merged(
        helm.at(f"{TRAINING}.extraVolumes", [{"name": "nvidia", "hostPath": {"path": "/home/nvidia"}}]),
        helm.at(f"{TRAINING}.extraVolumeMounts", [{"name": "nvidia", "mountPath": "/usr/local/nvidia"}]),
    )
    for name, spec in trainers(helm.merged(helm.everything(), volumes)).items():
        if not name.endswith("Launcher"):
            (preflight,) = [one for one in spec["initContainers"] if one["name"] == "preflight"]
            assert {"name": "nvidia", "mountPath": "/usr/local/nvidia"} in preflight["volumeMounts"]
