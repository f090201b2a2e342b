"""examples/clusters: complete values for rented and owned clusters, as far as they can be judged without one."""

import functools
import json
import re

import pytest

from . import helm

FILES = sorted((helm.ROOT / "examples" / "clusters").glob("*.yaml"))
PAGE = (helm.ROOT / "docs" / "clusters.md").read_text()
# What keeps the training pods from `restricted`, and nothing else of the release: what docs/clusters.md says.
LOCK = r'container "\w+" must not include "IPC_LOCK"'
GOOGLE = (
    'container "tcpxo?-daemon" must set securityContext.allowPrivilegeEscalation=false',
    'containers? "tcpxo?-daemon"(, "pytorch")? must',
    '"hostPath"',
    "runAsNonRoot",
    "runAsUser=0",
)
PRIVILEGED = (
    r'container "\w+" must not set securityContext.privileged=true',
    r'containers? "\w+" must set securityContext',
)
FINDINGS = {
    "privileged": (*GOOGLE, *PRIVILEGED),
    "restricted but for IPC_LOCK": (LOCK,),
    "restricted": (),
}

each = pytest.mark.parametrize("values", FILES, ids=lambda path: path.stem)


@functools.cache
def objects(values):
    return helm.documents(helm.template(values))


def pods(values):
    """The pod templates of a file's objects, by kind and role."""
    found = {}
    for one in objects(values):
        part, spec = one["kind"], one.get("spec", {})
        if "template" in spec:
            found[part] = spec["template"]
        for role, replica in {**spec.get("pytorchReplicaSpecs", {}), **spec.get("mpiReplicaSpecs", {})}.items():
            found[f"{part}/{role}"] = replica["template"]
    return found


def claimed(values):
    """What the page's table says of a file's training pods."""
    (said,) = re.findall(rf"^\| .*\(\.\./examples/clusters/{re.escape(values.name)}\) \| (.+) \|$", PAGE, re.M)
    return said


@each
def test_both_helms_render_it_and_it_matches_the_schemas(values):
    assert {"PersistentVolumeClaim", "ConfigMap"} & {one["kind"] for one in helm.documents(helm.rendered(values))}


@each
def test_it_passes_the_pod_security_that_the_page_says(values):
    allowed = FINDINGS[claimed(values)]
    if not allowed:
        helm.run("podsecurity", stdin=helm.template(values))
        return
    with pytest.raises(helm.HelmError) as caught:
        helm.run("podsecurity", stdin=helm.template(values))
    *findings, _ = str(caught.value).strip().splitlines()
    assert findings
    for finding in findings:
        assert re.match(r"(PyTorchJob|MPIJob)/", finding), "only training pods ask for more"
        assert "Launcher" not in finding
        assert any(re.search(pattern, finding) for pattern in allowed), finding


@each
def test_it_says_that_it_did_not_run_there_and_the_page_has_it(values):
    head = re.match(r"(#.*\n)+", values.read_text())[0].replace("\n#", "")
    assert re.search(r"\bNot run on\b", head)
    assert "docs/clusters.md" in head
    assert f"](../examples/clusters/{values.name})" in PAGE.split("## ", 1)[1], "no section speaks of it"


def test_the_dataset_leaves_the_gpu_nodes():
    for values in FILES:
        found = pods(values)
        if "Job" not in found:
            continue
        trains = next(template["spec"] for name, template in found.items() if name.endswith(("Worker", "Master")))
        own = found["Job"]["spec"].get("nodeSelector", {})
        gpu = trains.get("nodeSelector", {})
        assert not gpu or not gpu.items() <= own.items(), values.name
        assert not any(key.endswith("/gpu") for key in found["Job"]["spec"]["containers"][0]["resources"]["limits"])


def test_a_launcher_goes_to_its_own_nodes_without_the_workers_network():
    found = pods(helm.ROOT / "examples/clusters/coreweave.yaml")
    launcher, worker = found["MPIJob/Launcher"]["spec"], found["MPIJob/Worker"]["spec"]
    assert launcher["nodeSelector"] == {"node.coreweave.cloud/class": "cpu"}
    assert worker["nodeSelector"] == {"gpu.nvidia.com/class": "H100"}
    assert worker["containers"][0]["resources"]["limits"]["rdma/ib"] == 1
    assert "rdma/ib" not in json.dumps(launcher)


def test_openshift_names_no_user_and_no_group():
    for name, template in pods(helm.ROOT / "examples/clusters/openshift.yaml").items():
        text = json.dumps(template)
        for field in ("runAsUser", "runAsGroup", "fsGroup"):
            assert f'"{field}":' not in text, f"{name}: {field}"


def test_pinned_cores_come_to_pods_that_are_guaranteed():
    found = pods(helm.ROOT / "examples/clusters/on-prem-infiniband.yaml")
    for role in ("Master", "Worker"):
        spec = found[f"PyTorchJob/{role}"]["spec"]
        for container in [*spec["initContainers"], *spec["containers"]]:
            amounts = container["resources"]
            for which in ("cpu", "memory"):
                assert amounts["requests"][which] == amounts["limits"][which]
            assert str(amounts["limits"]["cpu"]).isdigit(), "whole cores"


def test_the_daemon_of_google_stands_beside_the_trainers_and_nowhere_else():
    for values in FILES:
        if not values.name.startswith("gke"):
            continue
        for name, template in pods(values).items():
            sidecars = [one["name"] for one in template["spec"].get("initContainers", []) if "restartPolicy" in one]
            annotated = any("tcpx" in key for key in template["metadata"].get("annotations", {}))
            assert bool(sidecars) == annotated == name.startswith("PyTorchJob"), name
