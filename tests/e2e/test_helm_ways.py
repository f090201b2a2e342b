"""Helm's options, and Kustomize in place of Helm: what each does to a release's jobs and claims. Nothing trains here.

docs/helm.md has the table. The release has two claims that no pod uses while its job is suspended, so they are not
bound: the class of the one-node cluster binds a claim when its first pod is placed, as those of clouds do.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml

from tests import documents, patience
from tests.e2e import cluster
from tests.e2e.cluster import get, helm, kubectl

pytestmark = [pytest.mark.e2e, pytest.mark.takes(90)]
NAMESPACES = "ways"
HELMS = ("helm3", "helm4")
RELEASE = "run"
CHART = "charts/trainyard"
OLD = Path(__file__).parent / "stored" / "trainyard-0.1.0.tgz"
OWN = f"app.kubernetes.io/instance={RELEASE}"
VALUES = [
    "-f", "examples/demo.yaml", "--set", "mpijob.enabled=false,dataset.enabled=false,pytorchjob.runPolicy.suspend=true",
    "--set", "global.image.registry=localhost,global.image.tag=no-such-image,global.image.pullPolicy=Never",
    "--set", "global.training.name=run-pytorchjob",
]  # fmt: skip
ROLLBACK = {"helm3": "--atomic", "helm4": "--rollback-on-failure"}
CLUSTER = {"KUBECONFIG": cluster.KUBECONFIG}
UNBOUND = {"helm3": "context deadline exceeded", "helm4": "PVC is not Bound"}


def in_vain() -> list[str]:
    """Return Helm's time limit for a wait that fails: long enough for a busy machine to read the claims' state."""
    return ["--timeout", f"{10 * patience.slowness():.0f}s"]


def memory(limit: str) -> list[str]:
    """Return settings that make another job."""
    return ["--set", f"global.training.resources.limits.memory={limit}"]


def jobs(namespace: str) -> set[str]:
    """Return the names of the release's training jobs that are not being deleted."""
    found = get("pytorchjobs", namespace, OWN)
    return {one["metadata"]["name"] for one in found if "deletionTimestamp" not in one["metadata"]}


def claims(namespace: str) -> dict[str, str]:
    """Return the phases of the claims, by name."""
    return {one["metadata"]["name"]: one["status"]["phase"] for one in get("persistentvolumeclaims", namespace)}


@pytest.fixture
def run(namespace) -> Iterator:
    """Return a function that calls Helm for the release: its exit code and all that it says. Nothing stays."""

    def do(program: str, command: str, *arguments: str | Path) -> tuple[int, str]:
        done = helm(command, RELEASE, *arguments, "-n", namespace, program=program, check=False)
        return done.returncode, done.stdout + done.stderr

    yield do
    do("helm3", "uninstall")
    kubectl("delete", "pytorchjobs,persistentvolumeclaims,configmaps,networkpolicies", "-l", OWN, "-n", namespace)


def install(run, program: str, chart: str | Path = CHART, *settings: str) -> None:
    """Install the release, which must succeed."""
    code, said = run(program, "install", chart, *VALUES, *settings)
    assert code == 0, said


@pytest.mark.parametrize("program", HELMS)
def test_wait_ends_when_the_claims_are_bound_and_not_when_the_run_has_ended(run, namespace, program):
    install(run, program, CHART, "--set", "pytorchjob.runPolicy.suspend=false", "--wait", "--timeout", "24h")
    assert set(claims(namespace).values()) == {"Bound"}
    (job,) = get("pytorchjobs", namespace, OWN)
    assert "completionTime" not in job.get("status", {})


@pytest.mark.parametrize("program", HELMS)
def test_an_upgrade_that_waited_in_vain_leaves_a_job_that_helm_forgets(run, namespace, program):
    install(run, program)
    code, said = run(program, "upgrade", CHART, *VALUES, *memory("3Gi"), "--wait", *in_vain())
    assert code == 1
    assert UNBOUND[program] in said
    (left,) = jobs(namespace)
    code, said = run(program, "upgrade", CHART, *VALUES, *memory("2Gi"))
    assert code == 0, said
    assert left in jobs(namespace)
    assert len(jobs(namespace)) == 2
    run(program, "uninstall")
    cluster.until("the release's own job is gone", lambda: jobs(namespace) == {left})


@pytest.mark.parametrize("program", HELMS)
def test_an_install_that_is_rolled_back_leaves_its_claims_alone(run, namespace, program):
    code, said = run(program, "install", CHART, *VALUES, ROLLBACK[program], *in_vain())
    assert code == 1
    assert "has been uninstalled" in said
    assert run(program, "status")[0] == 1
    cluster.until("the job is gone", lambda: not jobs(namespace))
    assert claims(namespace) == {"run-data": "Pending", "run-results": "Pending"}


@pytest.mark.shows("upgrades and rolls back", "Helm 3", "Helm 4")
@pytest.mark.parametrize("program", HELMS)
def test_values_of_the_release_before_and_the_way_back(run, namespace, program):
    install(run, program, OLD)
    before = jobs(namespace)
    code, said = run(program, "upgrade", CHART, "--reuse-values")
    assert code == 1
    assert "--reset-then-reuse-values" in said
    code, said = run(program, "upgrade", CHART, *memory("3Gi"))
    assert code == 1, "Helm takes no value of the release before where one is given"
    assert "Please set:" in said
    code, said = run(program, "upgrade", CHART, "--reset-values")
    assert code == 1
    assert "Please set:" in said
    code, said = run(program, "upgrade", CHART, "--reset-then-reuse-values")
    assert code == 0, said
    assert jobs(namespace) == before
    code, said = run(program, "rollback", "1", *(["--server-side=false"] if program == "helm4" else []))
    assert code == 0, said
    assert jobs(namespace) == before


def suspend(namespace: str) -> bool:
    """Whether the job is suspended."""
    (job,) = get("pytorchjobs", namespace, OWN)
    return bool(job["spec"]["runPolicy"]["suspend"])


# Who installs and who upgrades -> whether the upgrade takes what was changed by hand as a conflict
HANDS = {("helm3", "helm3"): False, ("helm3", "helm4"): False, ("helm4", "helm4"): True}


@pytest.mark.parametrize(("first", "second"), HANDS)
def test_a_field_that_was_changed_by_hand(run, namespace, first, second):
    install(run, first)
    (job,) = jobs(namespace)
    change = json.dumps({"spec": {"runPolicy": {"suspend": False}}})
    kubectl("patch", "pytorchjob", job, "-n", namespace, "--type=merge", "-p", change)
    code, said = run(second, "upgrade", CHART, *VALUES)
    assert (code == 1) == HANDS[first, second], said
    assert not suspend(namespace)
    if HANDS[first, second]:
        assert re.search(r'conflict with "kubectl-patch" using \S+: .spec.runPolicy.suspend', said)
        code, said = run(second, "upgrade", CHART, *VALUES, "--force-conflicts")
        assert code == 0, said
        assert suspend(namespace)


FORCE = {"helm3": ("--force", "spec is immutable"), "helm4": ("--force-replace", "cannot use server-side apply")}


@pytest.mark.parametrize("program", HELMS)
def test_force_replaces_no_claim(run, namespace, program):
    install(run, program)
    option, words = FORCE[program]
    code, said = run(program, "upgrade", CHART, *VALUES, option)
    assert code == 1
    assert words in said
    assert set(claims(namespace)) == {"run-data", "run-results"}


def difference(namespace: str, *settings: str) -> tuple[int, str]:
    """Return what kubectl diff says of these settings: 0 and nothing where nothing would change."""
    objects = helm("template", RELEASE, CHART, "-n", namespace, *VALUES, *settings).stdout
    done = cluster.run("kubectl", "diff", "-n", namespace, "-f", "-", stdin=objects, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("program", HELMS)
def test_kubectl_shows_what_an_upgrade_would_change(run, namespace, program):
    install(run, program)
    shown = [""]

    def same() -> bool:
        """Whether it shows nothing; the operator may write the job's status between its two looks."""
        code, shown[0] = difference(namespace)
        return (code, shown[0]) == (0, "")

    cluster.until("its operator has looked at it", lambda: get("pytorchjobs", namespace, OWN)[0].get("status"))
    cluster.until(lambda: f"kubectl diff shows nothing; it shows:\n{shown[0]}", same)
    code, text = difference(namespace, *memory("3Gi"))
    assert code == 1
    assert set(re.findall(r"^\+  name: (\S+)", text, re.M)) - jobs(namespace)


def small(limit: str) -> dict:
    """Return the values of VALUES, with this limit of memory, as the tree of a file."""
    tree: dict = yaml.safe_load((cluster.ROOT / "examples" / "demo.yaml").read_text())
    tree["global"]["image"] = {"registry": "localhost", "tag": "no-such-image", "pullPolicy": "Never"}
    tree["global"]["training"]["resources"]["limits"]["memory"] = limit
    return tree | {
        "dataset": {"enabled": False},
        "mpijob": {"enabled": False},
        "pytorchjob": {"runPolicy": {"suspend": True}},
    }


@pytest.mark.parametrize("program", HELMS)
def test_kustomize_makes_the_same_objects_and_prunes_the_job_before(run, namespace, program, tmp_path):
    page = (cluster.ROOT / "docs" / "helm.md").read_text()
    kustomization = re.search(r"```yaml\n(apiVersion: kustomize.*?)```", page, re.S)
    assert kustomization
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "charts").symlink_to(cluster.ROOT / "charts")
    (folder / "kustomization.yaml").write_text(kustomization[1].replace("vision", namespace))

    def apply(limit: str) -> set[str]:
        (folder / "run.yaml").write_text(yaml.safe_dump(small(limit)))
        documents.run("helm.md", "kubectl kustomize", {"vision": namespace, "helm3": program}, folder, **CLUSTER)
        objects = yaml.safe_load_all((folder / "objects.yaml").read_text())
        rendered = helm("template", RELEASE, CHART, "-n", namespace, "-f", folder / "run.yaml", program=program).stdout
        assert by_name(objects) == by_name(filter(None, yaml.safe_load_all(rendered)))
        return jobs(namespace)

    first, second = apply("3Gi"), apply("2Gi")
    assert len(first) == len(second) == 1
    assert first != second
    assert set(claims(namespace)) == {"run-data", "run-results"}


def by_name(objects: Iterable[dict]) -> dict[str, dict]:
    """Return objects by kind and name."""
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in objects}
