"""Flux's own controllers install the published chart from a registry, and this tree's from git.

docs/helm.md has the table. Only the run of deploy/flux/release.yaml trains. The others never do: they are suspended, or
their image is on no node.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from hack.publish import chart
from tests import patience
from tests.charts import helm
from tests.e2e import cluster, flux, gitops, queueing
from tests.e2e.cluster import get, kubectl, until
from tests.e2e.pushed import VERSION, Published, publish
from tests.fakes import git_server
from tests.fakes import registry as registries

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.soak,
    pytest.mark.alone,
    pytest.mark.ranks(1),
    pytest.mark.takes(150),
    pytest.mark.skipif(not cluster.OWN, reason="it starts Flux's controllers beside the one-node cluster"),
]
NAMESPACES = "flux"
RELEASE = helm.ROOT / "deploy" / "flux" / "release.yaml"
EXAMPLE = helm.ROOT / "examples" / "clusters" / "flux.yaml"
STEPS, MORE = 2, 4
JOBS = "pytorchjobs.kubeflow.org"
TRAINS = {
    "global": {
        "storage": {"data": {"size": "1Gi"}, "results": {"size": "1Gi"}},
        "dataset": {"name": "fashion"},
        "training": {
            "nodes": 1, "gpusPerNode": 0, "processesPerNode": 1, "recipe": "demo", "shmSize": "64Mi",
            "config": {"max_steps": STEPS, "batch": {"global": 16}, "wandb": {"mode": "off"}},
            "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "4Gi"}},
        },
    },
    "dataset": {
        "source": {"kind": "http", "url": "http://archive/fashion.zip", "competition": ""},
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
    },
}  # fmt: skip
# Its pods never start, and its claims are bound when one has been placed
NOWHERE = {
    "global": {
        "image": {"registry": "localhost", "tag": "no-such-image", "pullPolicy": "Never"},
        "storage": {which: {"existingClaim": "", "size": "1Gi"} for which in ("data", "results")},
        "scheduling": {"queue": ""},
        "dataset": {"name": "fashion"},
        "training": {
            "nodes": 1, "gpusPerNode": 0, "processesPerNode": 1, "shmSize": "64Mi",
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
        },
    },
    "dataset": {"resources": {"requests": {"cpu": "10m", "memory": "64Mi"}}},
}  # fmt: skip
SUSPENDED = {"pytorchjob": {"runPolicy": {"suspend": True}}}


class World(NamedTuple):
    """A namespace with Flux, what it installs from, and the git repository's folder."""

    namespace: str
    published: Published
    git: Path
    url: str


def apply(one: dict, namespace: str, **spec: object) -> dict:
    """Apply an object in a namespace, with further fields of its spec; return it."""
    one["metadata"]["namespace"] = namespace
    one.get("spec", {}).update(spec)
    kubectl("apply", "-f", "-", stdin=json.dumps(one))
    return one


@pytest.fixture(scope="module")
def world(namespace: str, image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Flux's controllers, a registry with this tree's chart, its login and CA, and a git repository with it."""
    work = tmp_path_factory.mktemp("flux")
    repository = work / "git"
    chart.copy(helm.ROOT, repository / "charts")
    gitops.commit(repository, {}, "The chart")
    with (
        publish(image, work / "published", "127.0.0.1") as published,
        git_server.serving(repository) as server,
        flux.running(namespace, work / "controllers") as logs,
    ):
        host, ca = published.registry.host, published.registry.ca
        login = (f"--docker-username={registries.USER}", f"--docker-password={registries.PASSWORD}")
        kubectl("create", "secret", "docker-registry", "registry", "-n", namespace, f"--docker-server={host}", *login)
        kubectl("create", "secret", "generic", "registry-ca", "-n", namespace, f"--from-file=ca.crt={ca}")
        yield World(namespace, published, repository, f"http://127.0.0.1:{server.server_port}/trainyard.git")
        print(*(path.read_text()[-20_000:] for path in logs.glob("*.log")), sep="\n")  # shown where a test fails


def jobs(world: World, release: str) -> list[dict]:
    """Return a release's training jobs that are not being deleted."""
    found = get(JOBS, world.namespace, f"app.kubernetes.io/instance={release}")
    return [one for one in found if "deletionTimestamp" not in one["metadata"]]


def uid(world: World, release: str) -> str:
    """Return which object a release's one job is."""
    (job,) = jobs(world, release)
    return str(job["metadata"]["uid"])


def claims(world: World, release: str) -> dict[str, str]:
    """Return the uids of a release's claims that are not being deleted, by name."""
    found = get("persistentvolumeclaims", world.namespace, f"app.kubernetes.io/instance={release}")
    found = [one for one in found if "deletionTimestamp" not in one["metadata"]]
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in found}


def phases(world: World, release: str) -> set[str]:
    """Return the phases of a release's claims."""
    found = get("persistentvolumeclaims", world.namespace, f"app.kubernetes.io/instance={release}")
    return {one["status"]["phase"] for one in found}


def suspended(world: World, release: str) -> bool:
    """Whether a release's one job is suspended."""
    (job,) = jobs(world, release)
    return bool(job["spec"]["runPolicy"].get("suspend"))


def revisions(one: dict) -> list[int]:
    """Return the revisions of a HelmRelease that Flux remembers, the newest first."""
    return [entry["version"] for entry in one.get("status", {}).get("history", [])]


def is_at(revision: int) -> Callable[[dict], bool]:
    """Return whether a HelmRelease is ready, and at a revision."""
    return lambda one: flux.ready(one) and revisions(one)[:1] == [revision]


# The published chart: deploy/flux/release.yaml


class Trained(NamedTuple):
    """The HelmRelease of a run when it was ready first, and the run's job and claims at its end."""

    ready: dict
    job: dict
    claims: dict[str, str]


@pytest.fixture(scope="module")
def release(world: World) -> dict:
    """deploy/flux/release.yaml with this registry's names, without the signature that only its workflow can make."""
    source, one = yaml.safe_load_all(RELEASE.read_text())
    del source["spec"]["verify"]
    ca = {"name": "registry-ca"}
    apply(source, world.namespace, url=world.published.chart, ref={"tag": VERSION}, certSecretRef=ca)
    values = helm.merged(one["spec"]["values"], TRAINS)
    return apply(one, world.namespace, values=values)


@pytest.fixture(scope="module")
def trained(world: World, release: dict, request: pytest.FixtureRequest) -> Trained:
    """That run, followed to its end; its dataset has no source until Flux says that the release is ready."""
    ready = flux.becomes(flux.HELM_RELEASE, "run", world.namespace, flux.ready, "is ready")
    request.getfixturevalue("archive")
    cluster.follow("run", world.namespace)
    (job,) = jobs(world, "run")
    return Trained(ready, job, claims(world, "run"))


def log(world: World, job: dict) -> str:
    """Return what a job's first pod printed."""
    return cluster.log(f"{job['metadata']['name']}-master-0", world.namespace)


@pytest.mark.shows("trains with the published chart from a registry", "helm-controller", "source-controller")
def test_a_helm_release_trains_with_the_images_of_the_published_chart(world, trained):
    (entry,) = trained.ready["status"]["history"]
    assert (entry["status"], entry["version"]) == ("deployed", 1)
    # the digest follows the version, so that another chart of the same version is another one
    assert re.fullmatch(rf"{re.escape(VERSION)}\+[0-9a-f]{{12}}", entry["chartVersion"])
    pods = get("pods", world.namespace, "app.kubernetes.io/instance=run")
    assert {pod["metadata"]["labels"]["app.kubernetes.io/name"] for pod in pods} == {"dataset", "pytorchjob"}
    for pod in pods:
        spec = pod["spec"]
        used = {one["image"] for one in spec["containers"] + spec.get("initContainers", [])}
        assert used == {world.published.image("trainyard-pytorch")}
        assert pod["status"]["phase"] == "Succeeded"
    assert f"step {STEPS}/{STEPS}" in re.sub(" +", " ", log(world, trained.job))


def test_flux_says_that_it_is_ready_while_the_dataset_waits_for_its_source(trained):
    assert flux.condition(trained.ready)["reason"] == "InstallSucceeded"
    assert flux.condition(trained.ready)["lastTransitionTime"] < trained.job["status"]["completionTime"]


@pytest.fixture(scope="module")
def longer(world: World, trained: Trained, release: dict) -> dict:
    """More steps, written into the HelmRelease; its job at its end."""
    patch = {"spec": {"values": {"global": {"training": {"config": {"max_steps": MORE}}}}}}
    kubectl("patch", flux.HELM_RELEASE, "run", "-n", world.namespace, "--type=merge", "-p", json.dumps(patch))
    flux.becomes(flux.HELM_RELEASE, "run", world.namespace, is_at(2), "is upgraded")
    cluster.follow("run", world.namespace)
    (job,) = jobs(world, "run")
    return job


def test_an_upgrade_by_the_helm_release_goes_on_with_the_run(world, trained, longer):
    assert longer["metadata"]["name"] != trained.job["metadata"]["name"]
    assert claims(world, "run") == trained.claims
    text = re.sub(" +", " ", log(world, longer))
    assert f"resumed at step {STEPS}" in text
    assert f"step {MORE}/{MORE}" in text


def test_a_chart_pushed_again_under_its_version_is_taken_and_restarts_nothing(world, longer, tmp_path):
    before = flux.reconcile(flux.HELM_RELEASE, "run", world.namespace)["status"]["history"][0]
    described = world.published.folder / "Chart.yaml"
    described.write_text(described.read_text().replace("description: Train", "description: Really train"))
    world.published.push(tmp_path / "packed")
    flux.reconcile(flux.OCI_REPOSITORY, "trainyard", world.namespace)
    now = flux.becomes(flux.HELM_RELEASE, "run", world.namespace, is_at(3), "has the other chart")
    (entry, *_) = now["status"]["history"]
    assert entry["chartVersion"] != before["chartVersion"]
    assert entry["chartVersion"].startswith(f"{VERSION}+")
    assert uid(world, "run") == longer["metadata"]["uid"]


def test_the_end_of_a_helm_release_is_that_of_its_job_and_not_of_its_claims(world, trained, longer):
    kubectl("delete", flux.HELM_RELEASE, "run", "-n", world.namespace)
    until("its job is gone", lambda: not jobs(world, "run"))
    assert claims(world, "run") == trained.claims


def test_a_chart_is_taken_only_once_it_is_signed(world, tmp_path):
    """By a key, in the place of the identity that only the release workflow has."""
    registry = world.published.registry
    login = base64.b64encode(f"{registries.USER}:{registries.PASSWORD}".encode()).decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": login}}}))
    env = registry.env | {"COSIGN_PASSWORD": "", "DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)}
    programs = cluster.run("hack/signing/build").stdout.strip()

    def cosign(*words: str) -> None:
        done = patience.run([f"{programs}/cosign", *words], cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr

    cosign("generate-key-pair")
    cosign("signing-config", "create", "--out", "nobody.json")  # neither a log nor an authority: there is no network
    public = f"--from-file={tmp_path}/cosign.pub"
    kubectl("create", "secret", "generic", "signer", "-n", world.namespace, public)
    source, _ = yaml.safe_load_all(RELEASE.read_text())
    source["metadata"]["name"] = "signed"
    verify = {"provider": source["spec"]["verify"]["provider"], "secretRef": {"name": "signer"}}
    ca = {"name": "registry-ca"}
    apply(source, world.namespace, url=world.published.chart, ref={"tag": VERSION}, certSecretRef=ca, verify=verify)
    refused = flux.becomes(
        flux.OCI_REPOSITORY, "signed", world.namespace,
        lambda one: flux.condition(one).get("reason") == "VerificationError", "is refused",
    )  # fmt: skip
    assert "no matching signatures were found" in flux.condition(refused)["message"]
    reference = world.published.chart.removeprefix("oci://")
    cosign("sign", "--yes", "--key", "cosign.key", "--signing-config", "nobody.json", f"{reference}:{VERSION}")
    taken = flux.reconcile(flux.OCI_REPOSITORY, "signed", world.namespace)
    assert flux.ready(taken), flux.condition(taken)
    assert flux.condition(taken, "SourceVerified")["status"] == "True"


# This tree's chart from git: the HelmRelease of docs/clusters.md with the values of examples/clusters/flux.yaml


@pytest.fixture(scope="module")
def repository(world: World) -> str:
    """The GitRepository that the page's HelmRelease names."""
    spec = {"interval": "1h", "url": world.url, "ref": {"branch": "main"}}
    kind = {"apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository", "metadata": {"name": "trainyard"}}
    apply(kind | {"spec": spec}, world.namespace)
    flux.becomes(flux.GIT_REPOSITORY, "trainyard", world.namespace, flux.ready, "is ready")
    return "trainyard"


@pytest.fixture(scope="module")
def from_git(world: World, repository: str) -> Callable[..., dict]:
    """Return a function that applies the page's HelmRelease under a name, with values and other fields.

    A field that is None is left out, be it by its path with dots.
    """
    page = (helm.ROOT / "docs" / "clusters.md").read_text()
    found = re.search(r"```yaml\n(apiVersion: helm\.toolkit.*?)```", page, re.S)
    assert found

    def do(name: str, *layers: helm.Values, **fields: object) -> dict:
        one = yaml.safe_load(found[1])
        one["metadata"]["name"] = name
        for path, value in fields.items():
            *above, last = path.split(".")
            place = one["spec"]
            for key in above:
                place = place[key]
            place.pop(last)
            if value is not None:
                place[last] = value
        values = helm.merged(yaml.safe_load(EXAMPLE.read_text()), NOWHERE, *layers)
        (source,) = one["spec"]["valuesFrom"]
        source["name"] = f"{name}-values"
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": source["name"]}}
        apply(config | {"data": {"values.yaml": yaml.safe_dump(values)}}, world.namespace)
        return apply(one, world.namespace)

    return do


def mark(world: World, text: str, version: str = VERSION) -> str:
    """Commit a chart with a ConfigMap that says which commit it is, and this version; return the commit."""
    here = Path("charts/trainyard")
    name = "{{ .Release.Name }}-commit"
    template = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{commit: {text}}}\n"
    described = (world.git / here / "Chart.yaml").read_text()
    described = re.sub(r"^version: .*$", f"version: {version}", described, flags=re.M)
    files = {str(here / "templates" / "commit.yaml"): template, str(here / "Chart.yaml"): described}
    gitops.commit(world.git, files, text)
    return gitops.git(world.git, "rev-parse", "HEAD").strip()


def marked(world: World, release: str) -> str:
    """Return what the ConfigMap of a release says of the commit that it is from, if there is one."""
    found = get("configmaps", world.namespace, fields=f"metadata.name={release}-commit")
    return str(found[0]["data"]["commit"]) if found else ""


def packed(world: World, release: str, commit: str) -> str:
    """Have Flux look at a commit, and then at a release; return the version of the chart that it made of it."""
    name = f"{world.namespace}-{release}"
    source = flux.reconcile(flux.GIT_REPOSITORY, "trainyard", world.namespace)
    assert source["status"]["artifact"]["revision"].endswith(f":{commit}")
    flux.becomes(
        flux.HELM_CHART, name, world.namespace,
        lambda one: one["status"].get("observedSourceArtifactRevision", "").endswith(f":{commit}"), "is of that commit",
    )  # fmt: skip
    found = flux.reconcile(flux.HELM_CHART, name, world.namespace)  # what it observed comes before what it packed
    assert flux.ready(flux.reconcile(flux.HELM_RELEASE, release, world.namespace))
    return str(found["status"]["artifact"]["revision"])


def test_a_commit_is_taken_with_revision_and_otherwise_only_with_another_version(world, from_git):
    first = mark(world, "first")
    flux.reconcile(flux.GIT_REPOSITORY, "trainyard", world.namespace)
    from_git("page", SUSPENDED)
    from_git("without", SUSPENDED, **{"chart.spec.reconcileStrategy": None})
    for release in ("page", "without"):
        flux.becomes(flux.HELM_RELEASE, release, world.namespace, is_at(1), "is ready")
        packed(world, release, first)
        assert marked(world, release) == "first"
        assert phases(world, release) == {"Pending"}, "disableWait is for claims that are not bound"
    before = uid(world, "page")
    second = mark(world, "second")
    assert packed(world, "page", second) == f"{VERSION}+{second[:12]}"
    until("the commit is taken", lambda: marked(world, "page") == "second")
    assert packed(world, "without", second) == VERSION
    assert marked(world, "without") == "first"
    third = mark(world, "third", f"{VERSION}-third")
    assert packed(world, "without", third) == f"{VERSION}-third"
    until("the version is taken", lambda: marked(world, "without") == "third")
    assert uid(world, "page") == before, "another commit restarts the run"


def in_vain(seconds: float) -> dict[str, str]:
    """Return the time limit of a wait that fails: long enough for a busy machine to read the objects' states."""
    return {"timeout": f"{seconds * patience.slowness():.0f}s"}


def test_a_release_that_waits_fails_and_is_installed_again_for_each_retry(world, from_git):
    """Without disableWait: no pod of a suspended job is placed, so no claim is bound."""
    uids = set[str]()
    stop = cluster.watch(
        lambda one: uids.add(one["metadata"]["uid"]) if one["metadata"]["name"].startswith("waits-") else None,
        JOBS, world.namespace,
    )  # fmt: skip
    from_git("waits", SUSPENDED, install=in_vain(10) | {"remediation": {"retries": 1}})
    found = flux.becomes(
        flux.HELM_RELEASE, "waits", world.namespace,
        lambda one: flux.settled(one) and one["status"].get("installFailures") == 2, "has failed twice",
    )  # fmt: skip
    until("the watch has seen both jobs", lambda: len(uids) == 2)
    stop()
    said = flux.condition(found, "Released")["message"]
    assert re.search(r"PersistentVolumeClaim/\S+-(data|results) status: 'InProgress'|context deadline", said), said
    assert phases(world, "waits") == {"Pending"}


def test_a_release_that_waits_waits_for_the_end_of_the_dataset_too(world, from_git):
    """Pods are placed, so the claims are bound; their image is nowhere, so the dataset's Job does not end."""
    source = {"kind": "http", "url": "http://archive/fashion.zip", "competition": ""}
    prepares = {"dataset": {"enabled": True, "source": source}}
    from_git("prepares", prepares, install=in_vain(30))
    from_git("goes-on", prepares, install={"disableWaitForJobs": True, "timeout": "24h"})
    found = flux.becomes(
        flux.HELM_RELEASE, "prepares", world.namespace, lambda one: one["status"].get("installFailures"), "has failed"
    )
    said = flux.condition(found, "Released")["message"]
    assert re.search(r"Job/\S+ status: 'InProgress'|context deadline", said), said
    flux.becomes(flux.HELM_RELEASE, "goes-on", world.namespace, flux.ready, "is ready")
    assert phases(world, "prepares") == phases(world, "goes-on") == {"Bound"}


DRIFTS = {"driftDetection": {"mode": "enabled"}}  # without the page's `ignore`


def change(world: World, release: str, value: bool) -> None:
    """Set `suspend` of a release's job by hand."""
    (job,) = jobs(world, release)
    patch = json.dumps({"spec": {"runPolicy": {"suspend": value}}})
    kubectl("patch", JOBS, job["metadata"]["name"], "-n", world.namespace, "--type=merge", "-p", patch)


def test_drift_detection_sets_suspend_back_where_values_have_it_unless_it_is_ignored(world, from_git):
    from_git("drifts", SUSPENDED, **DRIFTS)
    flux.becomes(flux.HELM_RELEASE, "drifts", world.namespace, flux.ready, "is ready")
    change(world, "drifts", False)
    flux.reconcile(flux.HELM_RELEASE, "drifts", world.namespace)
    until("it is suspended again", lambda: suspended(world, "drifts"))
    from_git("drifts", SUSPENDED)  # as the page has it
    flux.reconcile(flux.HELM_RELEASE, "drifts", world.namespace)
    change(world, "drifts", False)
    found = flux.reconcile(flux.HELM_RELEASE, "drifts", world.namespace)
    assert not flux.drifted(found)
    assert not suspended(world, "drifts")
    # what is ignored is no drift, and still a field of the chart: the next upgrade sets it, whoever has it
    from_git("drifts", SUSPENDED, {"global": {"labels": {"team": "vision"}}})
    flux.reconcile(flux.HELM_RELEASE, "drifts", world.namespace)
    until("an upgrade suspends it", lambda: suspended(world, "drifts"))


def test_drift_detection_makes_a_job_again_that_was_deleted(world, from_git):
    from_git("again", SUSPENDED)
    flux.becomes(flux.HELM_RELEASE, "again", world.namespace, flux.ready, "is ready")
    before = uid(world, "again")
    kubectl("delete", JOBS, "-l", "app.kubernetes.io/instance=again", "-n", world.namespace)
    flux.reconcile(flux.HELM_RELEASE, "again", world.namespace)
    until("it is there again", lambda: jobs(world, "again"))
    assert uid(world, "again") != before


def test_drift_detection_leaves_a_job_to_kueue(world, kueue, from_git):
    """Values do not have `suspend`, so Flux has nothing to set back, even where nothing is ignored."""
    from_git("queued", {"global": {"scheduling": {"queue": "team-a"}}}, **DRIFTS)
    flux.becomes(
        flux.HELM_RELEASE, "queued", world.namespace, lambda one: flux.ready(one) or flux.drifted(one), "is ready"
    )
    before = uid(world, "queued")
    assert suspended(world, "queued"), "Kueue suspends what is in a queue"
    waits = flux.reconcile(flux.HELM_RELEASE, "queued", world.namespace)
    with queueing.queues(world.namespace):
        until("Kueue admits it", lambda: not suspended(world, "queued"))
        until("its pod is placed", lambda: phases(world, "queued") == {"Bound"})
        admitted = flux.reconcile(flux.HELM_RELEASE, "queued", world.namespace)
        assert not suspended(world, "queued")
    for found in (waits, admitted):
        assert not flux.drifted(found), flux.condition(found, "Drifted")
        assert flux.ready(found)
    assert uid(world, "queued") == before
