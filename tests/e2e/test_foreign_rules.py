"""A cluster whose admission takes only users from a range, as OpenShift's SecurityContextConstraints do.

A MutatingAdmissionPolicy sets user and group where a pod leaves them open; a ValidatingAdmissionPolicy refuses others.
"""

import json
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e import cluster, misconfigured, owners
from tests.e2e.cluster import get, until, why
from tests.e2e.owners import LABELS
from tests.e2e.saying import says

pytestmark = [pytest.mark.e2e, pytest.mark.takes(90)]
FIRST, LAST = 1000730000, 1000739999
SMALL = {
    "nodes": 2, "gpusPerNode": 0, "processesPerNode": 1, "recipe": "demo", "shmSize": "64Mi",
    "config": {"max_steps": 2, "batch": {"global": 16}, "wandb": {"mode": "off"}},
    "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "2", "memory": "4Gi"}},
}  # fmt: skip


def within(field: str) -> str:
    """Return the rule, in CEL, that a user or group is left to the platform or from the range."""
    return f"!has({field}) || ({field} >= {FIRST} && {field} <= {LAST})"


def users_from_a_range(namespace: str, name: str) -> list[dict]:
    """Describe a policy and its binding that hold for one namespace's pods, as restricted-v2 holds for a project's."""
    pod = "object.spec.securityContext"
    rules = {
        f"!has({pod}) || {within(f'{pod}.runAsUser')}": f"runAsUser must be in {FIRST}-{LAST}",
        f"!has({pod}) || {within(f'{pod}.fsGroup')}": f"fsGroup must be in {FIRST}-{LAST}",
        "object.spec.containers.all(c, !has(c.securityContext) || "
        f"{within('c.securityContext.runAsUser')})": f"a container's runAsUser must be in {FIRST}-{LAST}",
    }
    # what admission does there for a pod that leaves it to the platform: config files belong to the group that it sets
    chosen = f"{{runAsUser: {FIRST}, fsGroup: {FIRST}}}"
    given = f"Object{{spec: Object.spec{{securityContext: Object.spec.securityContext{chosen}}}}}"
    matches = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    what = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    meta = {"name": name, "labels": LABELS}
    return [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": meta,
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [what]},
                "validations": [{"expression": rule, "message": said} for rule, said in rules.items()],
            },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingAdmissionPolicy",
            "metadata": meta,
            "spec": {
                "failurePolicy": "Fail",
                "reinvocationPolicy": "Never",
                "matchConstraints": {"resourceRules": [what]},
                "matchConditions": [{"name": "left-open", "expression": f"!has({pod}) || !has({pod}.runAsUser)"}],
                "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": given}}],
            },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": meta,
            "spec": {"policyName": name, "matchResources": matches},
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": meta,
            "spec": {"policyName": name, "validationActions": ["Deny"], "matchResources": matches},
        },
    ]


@pytest.fixture(scope="module")
def project(namespace, archive) -> Iterator[str]:
    """The namespace, with the archive's server in it, under such a policy."""
    name = f"users-{secrets.token_hex(3)}"
    misconfigured.apply(namespace, *users_from_a_range(namespace, name))

    def tried(**rights: object) -> "subprocess.CompletedProcess[str]":
        own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        pod = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}} | rights
        container = {"name": "probe", "image": "none", "securityContext": own}
        over = json.dumps({"spec": {"securityContext": pod, "containers": [container]}})
        probe = ("run", "probe", "-n", namespace, "--image=none", "--dry-run=server", "-o", "json")
        return cluster.run("kubectl", *probe, f"--overrides={over}", check=False)

    def enforced() -> bool:  # each policy at a time of its own
        given = f'"runAsUser": {FIRST}' in tried().stdout
        return given and "runAsUser must be" in tried(runAsUser=1).stderr

    try:
        until("both policies are enforced", enforced)
        yield namespace
    finally:
        for kind in ("validating", "mutating"):
            for part in ("policybindings", "policies"):
                owners.delete(f"{kind}admission{part}", name)


def openshift(tmp_path: Path, **over: object) -> Path:
    """Return the published values for OpenShift, with this machine's storage, archive and no GPUs."""
    values = yaml.safe_load((cluster.ROOT / "examples/clusters/openshift.yaml").read_text())
    shared = values["global"]
    del shared["image"], shared["scheduling"]
    for claim in ("data", "results"):
        shared["storage"][claim] = {"size": "1Gi"}
    shared["storage"] |= over
    shared["dataset"] = {"name": "fashion"}
    shared["training"] = SMALL
    values["dataset"] = {"source": {"url": "http://archive/fashion.zip"}, "scheduling": {"nodeSelector": {}}}
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def phases(namespace: str, release: str) -> dict[str, str]:
    """Return the phases of a release's pods, by name."""
    pods = get("pods", namespace, f"app.kubernetes.io/instance={release}")
    return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in pods}


def trained(found: dict[str, str]) -> bool:
    """Whether all pods have succeeded, that of rank 0 too: a late operator makes it after the dataset's has ended."""
    return set(found.values()) == {"Succeeded"} and any(name.endswith("-master-0") for name in found)


def test_the_example_of_openshift_trains_where_only_a_range_of_users_is_admitted(project, install, tmp_path):
    install("shift", project, values=openshift(tmp_path))
    try:
        until(lambda: why("shift", project), lambda: trained(phases(project, "shift")))
        for pod in get("pods", project, "app.kubernetes.io/instance=shift"):
            held = pod["spec"]["securityContext"]
            assert (held["runAsUser"], held["fsGroup"], "runAsGroup" in held) == (FIRST, FIRST, False)
    finally:
        cluster.helm("uninstall", "shift", "-n", project, "--wait", "--ignore-not-found")


def test_another_user_is_refused_and_the_remedy_is_named(project, install, tmp_path):
    install("other", project, values=openshift(tmp_path, uid=1000))
    try:
        said = says("other", project, "runAsUser must be in")
        assert "set global.storage.uid: platform" in said
        assert phases(project, "other") == {}
    finally:
        cluster.helm("uninstall", "other", "-n", project, "--wait", "--ignore-not-found")


def test_a_user_of_the_range_is_admitted(project, install, tmp_path):
    install("ranged", project, "--set", "pytorchjob.enabled=false", values=openshift(tmp_path, uid=FIRST, gid=FIRST))
    try:
        until(lambda: why("ranged", project), lambda: "Succeeded" in phases(project, "ranged").values())
        (pod,) = get("pods", project, "app.kubernetes.io/instance=ranged")
        assert pod["spec"]["securityContext"]["runAsUser"] == FIRST
    finally:
        cluster.helm("uninstall", "ranged", "-n", project, "--wait", "--ignore-not-found")
