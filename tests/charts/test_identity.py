"""A changed run is a new job, an unchanged one changes nothing; names are short enough for the operators' suffixes."""

import re

import pytest

from . import helm

CLAIM = helm.at("global.storage.results.existingClaim", "other")
# Each changes what the jobs run.
CHANGES = {
    "image": helm.at("global.image.tag", "0.1.0-def"),
    "config": helm.at("global.training.config.seed", 3),
    "run name": helm.at("global.training.name", "another"),
    "nodes": helm.at("global.training.nodes", 3),
    "processes": helm.at("global.training.processesPerNode", 3),
    "resources": helm.at("global.training.resources.limits.memory", "64Gi"),
    "environment": helm.at("global.training.env", [{"name": "NCCL_DEBUG", "value": "INFO"}]),
    "dataset": helm.at("global.dataset.name", "flowers"),
    "claim": CLAIM,
    "folder of the claim": helm.at("global.storage.data.subPath", "team-a"),
    "user": helm.at("global.storage.uid", 2001),
    "GPUs by another name": helm.at(
        "global.training", {"gpuResource": "amd.com/gpu", "gpusPerNode": 4, "processesPerNode": 0}
    ),
    "the node's network": helm.at("global.training.unrestricted.hostNetwork", True),
    "environment from a Secret": helm.at("global.training.envFrom", [{"secretRef": {"name": "team"}}]),
    "users of its own": helm.at("global.training.hostUsers", False),
    "another resolver": helm.at("global.training.dnsPolicy", "Default"),
    "a container beside it": helm.at("global.training.extraContainers", [{"name": "daemon", "image": "daemon:1"}]),
}
# Each changes how the jobs are kept or placed, not what they compute.
SAME = {
    "labels": helm.at("global.training.podLabels", {"team": "vision"}),
    "queue": helm.at("global.scheduling.queue", "vision"),
    "metrics": helm.at("global.metrics", {"enabled": True, "port": 9500}),
    "priority in it": helm.at("global.scheduling.queuePriority", "urgent"),
    "node": helm.at("global.scheduling.nodeSelector", {"disk": "fast"}),
    "the launcher's": helm.at("mpijob.launcher.scheduling", {"nodeSelector": {"pool": "cpu"}}),
    "annotations of the job": helm.at("global.training.jobAnnotations", {"example.com/cost": "research"}),
    "annotations of every object": helm.at("global.annotations", {"example.com/cost": "research"}),
    "labels of the job": helm.at("global.training.jobLabels", {"example.com/cost": "research"}),
    "the dataset's environment": helm.at("dataset.env", [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]),
    "time to live": helm.merged(
        helm.at("pytorchjob.runPolicy.ttlSecondsAfterFinished", 60),
        helm.at("mpijob.runPolicy.ttlSecondsAfterFinished", 60),
        helm.at("trainjob.runPolicy.ttlSecondsAfterFinished", 60),
    ),
    "suspend": helm.merged(
        *(helm.at(f"{job}.runPolicy.suspend", True) for job in ("pytorchjob", "mpijob", "trainjob"))
    ),
    "file browser": helm.merged(helm.at("filebrowser.writable", True), helm.at("filebrowser.port", 9090)),
    "rotated secret": helm.at("secrets.wandb.apiKey", "another-key"),
    "secret": helm.merged(helm.at("global.secrets.wandb.existingSecret", "team"), helm.at("secrets.enabled", False)),
}


TRAINING = ("PyTorchJob", "MPIJob", "TrainJob")
PAGE = ["Deployment", "Service"]  # of the file browser


def names(values: helm.Values, release: str = "demo") -> dict[str, str]:
    """Return the names of the jobs that values render; `Job` is the preparation, `Evaluation` the other Job."""
    found = helm.documents(helm.template(values, release=release))
    parts = {"evaluate": "Evaluation"}
    return {
        parts.get(one["metadata"]["labels"]["app.kubernetes.io/name"], one["kind"]): one["metadata"]["name"]
        for one in found
        if one["kind"].endswith("Job")
    }


def base() -> helm.Values:
    """Values with a separate run name for each job."""
    own = (helm.at(f"{job}.training.name", f"as-{job}") for job in ("mpijob", "trainjob"))
    return helm.merged(helm.everything(), *own)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_run_is_a_new_job(change: helm.Values):
    before, after = names(base()), names(helm.merged(base(), change))
    changed = {kind for kind, name in before.items() if after[kind] != name}
    assert "PyTorchJob" in changed
    assert changed >= {"MPIJob", "TrainJob"} or change == CHANGES["run name"]  # which have their own run names


def test_a_run_as_root_is_a_new_job():
    root = (helm.at(f"{job}.training.unrestricted.runAsRoot", True) for job in ("pytorchjob", "trainjob"))
    before, after = names(base()), names(helm.merged(base(), *root))
    assert {kind for kind, name in before.items() if after[kind] != name} == {"PyTorchJob", "TrainJob"}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME.keys())
def test_what_does_not_change_the_run_keeps_the_job(change: helm.Values):
    before, after = names(base()), names(helm.merged(base(), change))
    assert [before[kind] for kind in TRAINING] == [after[kind] for kind in TRAINING]


def test_the_version_of_the_chart_is_not_part_of_a_name():
    for path in helm.CHART.glob("charts/common/templates/*.tpl"):
        uses = [line for line in path.read_text().splitlines() if "Chart.Version" in line or "AppVersion" in line]
        labels = [line for line in uses if "helm.sh/chart" in line or "app.kubernetes.io/version" in line]
        assert uses == labels


def test_a_preparation_with_other_settings_is_a_new_job():
    before = names(base())["Job"]
    assert names(helm.merged(base(), helm.at("dataset.settings.workers", 2)))["Job"] != before
    assert names(helm.merged(base(), helm.at("dataset.source.url", "https://example.com/other.zip")))["Job"] != before


def test_an_evaluation_of_another_model_is_a_new_job():
    """Also that of the same run with other settings, whose model is another."""
    own = helm.merged(base(), helm.at("evaluate.run", ""), helm.at("global.training.operator", "pytorchjob"))
    before = names(own)["Evaluation"]
    changes = [
        helm.at("evaluate.run", "another"), helm.at("evaluate.data", "/data/photos"),
        helm.at("evaluate.split", "train"), helm.at("global.training.config.epochs", 3),
        helm.at("global.image.tag", "0.1.0-def"),
    ]  # fmt: skip
    assert len({before, *(names(helm.merged(own, change))["Evaluation"] for change in changes)}) == len(changes) + 1
    same = helm.merged(own, helm.at("global.training.nodes", 3), helm.at("dataset.settings.workers", 2))
    assert names(same)["Evaluation"] == before


def test_a_job_whose_pod_template_changes_has_a_new_name():
    """A Job's template cannot be changed: with the same name the upgrade would be refused."""
    seen: dict[str, str] = {}
    changes = [
        {}, *CHANGES.values(), *SAME.values(), helm.at("dataset.resources.limits.memory", "9Gi"),
        helm.at("evaluate.resources.limits.memory", "9Gi"),
    ]  # fmt: skip
    for change in changes:
        found = helm.documents(helm.template(helm.merged(base(), change)))
        for job in (one for one in found if one["kind"] == "Job"):
            name, spec = job["metadata"]["name"], job["spec"]
            template = str((spec["template"], spec["podFailurePolicy"])).replace(name, "")
            assert seen.setdefault(name, template) == template


# What a comparison of manifests, such as `helm diff`, shows for a change: what differs, and what goes and comes.
RUNS = {"ConfigMap", "PyTorchJob", "MPIJob", "TrainJob", "TrainingRuntime"}
SHOWN = {
    "nothing": ({}, set(), set()),
    "a run": (helm.at("global.training.resources.limits.memory", "64Gi"), {"TrainingRuntime"}, RUNS),
    "a queue": (helm.at("global.scheduling.queue", "vision"), {*TRAINING, "TrainingRuntime"}, {"Job", "ConfigMap"}),
    "a secret": (helm.at("secrets.wandb.apiKey", "another-key"), {"Secret"}, set()),
    "the page": (helm.at("filebrowser.port", 9090), {"Deployment", "NetworkPolicy"}, set()),
    "the preparation": (helm.at("dataset.settings.workers", 2), set(), {"Job", "ConfigMap"}),
}


@pytest.mark.parametrize(("change", "differ", "come"), SHOWN.values(), ids=SHOWN.keys())
def test_a_comparison_of_manifests_shows_only_what_a_change_is_about(change: helm.Values, differ: set, come: set):
    before, after = (
        {(one["kind"], one["metadata"]["name"]): one for one in helm.documents(helm.template(values))}
        for values in (base(), helm.merged(base(), change))
    )
    assert {one[0] for one in before.keys() & after.keys() if before[one] != after[one]} == differ
    assert {kind for kind, _ in before.keys() - after.keys()} == come
    assert {kind for kind, _ in after.keys() - before.keys()} == come


def test_settings_belong_to_the_job_that_was_started_with_them():
    for document in helm.documents(helm.template(base())):
        name = document["metadata"]["name"]
        if document["kind"] in ("Job", "PyTorchJob", "MPIJob", "TrainingRuntime"):
            assert f"{name}-run" in str(document["spec"])
        if document["kind"] == "TrainJob":
            assert document["spec"]["runtimeRef"]["name"] == name


@pytest.mark.parametrize("release", ["demo", "a" * 53, "x" * 19 + "-" + "y" * 31, "7th.run", "r.e.l-e.a-s.e"])
def test_names_fit_where_the_operators_add_to_them_and_a_service(release: str):
    for kind, name in names(base(), release).items():
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name), kind
        assert len(name) <= 40, kind
    page = [one for one in helm.documents(helm.template(base(), release=release)) if one["kind"] in PAGE]
    assert sorted(one["kind"] for one in page) == PAGE
    assert all(re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", one["metadata"]["name"]) for one in page)


def test_long_releases_with_the_same_start_stay_apart():
    one, other = names(base(), "a" * 52 + "1"), names(base(), "a" * 52 + "2")
    assert not set(one.values()) & set(other.values())


def test_a_run_directory_is_named_after_release_and_job_without_a_hash():
    text = helm.template(helm.everything())
    assert '"dir": "/results/runs/demo-pytorchjob"' in text
    assert '"dir": "/results/runs/demo-mpijob"' in text
    assert '"dir": "/results/runs/demo-trainjob"' in text


@pytest.mark.parametrize("job", ["pytorchjob", "mpijob", "trainjob"])
def test_a_job_that_trains_alone_has_the_directory_of_the_release_whatever_made_it_the_only_one(job: str):
    alone = {one: {"enabled": one == job} for one in ("pytorchjob", "mpijob", "trainjob")}
    text = helm.template(helm.merged(helm.everything(), alone))
    assert '"dir": "/results/runs/demo"' in text
    assert "runs/demo-" not in text


def test_with_an_operator_named_one_job_trains_in_the_directory_of_the_release():
    for operator, kind in zip(("pytorchjob", "mpijob", "trainjob"), TRAINING, strict=True):
        found = helm.documents(
            helm.template(helm.merged(helm.everything(), helm.at("global.training.operator", operator)))
        )
        assert [one["kind"] for one in found if one["kind"] in TRAINING] == [kind]
        own = [one for one in found if one["kind"] == "ConfigMap" and operator in one["metadata"]["name"]]
        assert '"dir": "/results/runs/demo"' in own[0]["data"]["config.json"]


def test_what_nobody_may_change_in_a_trainjob_is_a_new_one():
    """Its spec can be changed in `suspend` alone: with the same name the upgrade would be refused."""
    seen: dict[str, dict] = {}
    policies = ({"activeDeadlineSeconds": 60}, {"managedBy": "kueue.x-k8s.io/multikueue"}, {"backoffLimit": 3})
    changes = [{}, *CHANGES.values(), *SAME.values(), *(helm.at("trainjob.runPolicy", one) for one in policies)]
    for change in changes:
        job = helm.only(helm.template(helm.merged(base(), change)), "TrainJob")
        spec = {key: value for key, value in job["spec"].items() if key != "suspend"}
        assert seen.setdefault(job["metadata"]["name"], spec) == spec


# Values as they were written for 0.1.0, and the names that it gave their jobs
KEPT = helm.json.loads((helm.ROOT / "tests" / "charts" / "names-0.1.0.json").read_text())


@pytest.mark.parametrize("name", KEPT)
def test_jobs_of_the_version_before_keep_their_names_with_that_of_their_run(name: str):
    """Where one job trains, its run is named after the release now: docs/chart.md says what to set."""
    values, (first, *others) = KEPT[name]["values"], KEPT[name]["names"]
    named = others or values["global"]["training"].get("name") or values["global"]["training"].get("operator")
    kept = {} if named else helm.at("global.training.name", f"run-{first.partition('/')[0].lower()}")
    found = helm.documents(helm.template(helm.merged(values, kept), release="run"))
    jobs = sorted(f"{one['kind']}/{one['metadata']['name']}" for one in found if one["kind"] in TRAINING)
    assert jobs == KEPT[name]["names"], "an upgrade of the chart alone would begin another job"
