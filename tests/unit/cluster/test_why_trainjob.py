"""trainyard why and trainyard follow on TrainJobs of Kubeflow Trainer v2, and the versions that do not fit."""

import re

import pytest

from tests.util.explained import OLD, YOUNG, condition, definition, event, explain, over, says, thing
from tests.util.why_messages import NOT_CREATED
from trainyard.cluster import follow, inventory, trainjobs, versions

NAME = "demo-trainjob-x"
REF = {"runtimeRef": {"kind": "TrainingRuntime", "name": NAME}}


def trainjob(status: dict | None = None, family: list[dict] | None = None, **metadata: object) -> dict:
    return thing("TrainJob", NAME, status, REF, **metadata) | {"family": family or []}


def child(active: int = 0, **status: object) -> dict:
    return thing("Job", f"{NAME}-node-0", {"active": active, **status}, {"parallelism": 2})


def said_of(job: dict, **more: list[dict]) -> str:
    return explain(**{trainjobs.TRAINJOBS: [job]}, **more)


@pytest.mark.parametrize(("message", "answer"), NOT_CREATED.values(), ids=NOT_CREATED)
def test_pods_that_cannot_be_made(message, answer):
    job = child()
    says(said_of(trainjob(family=[job]), events=[event(job, "FailedCreate", message)]), message[:40], answer)


def test_a_trainjob_whose_parts_cannot_be_made():
    job = trainjob()
    text = "TrainJob resources reconciliation failed: no matches for kind JobSet in version jobset.x-k8s.io/v1alpha2"
    says(said_of(job, events=[event(job, "TrainJobResourcesCreationFailed", text)]), "no matches for kind", "JobSet")


def test_a_trainjob_that_nobody_runs():
    says(said_of(trainjob()), "nobody has looked at it in 3600 s", "controller is not running")
    assert "remedy" not in said_of(trainjob(creationTimestamp=YOUNG))


def test_a_trainjob_that_runs_tells_its_progress():
    told = {"trainerStatus": {"progressPercentage": 42, "estimatedRemainingSeconds": 90}}
    assert re.search(rf"trainjob/{NAME} +Running, 42 %, 90 s left$", said_of(trainjob(told, [child(2)])), re.M)
    assert re.search(rf"trainjob/{NAME} +Running$", said_of(trainjob(family=[child(1, succeeded=1)])), re.M)
    quiet = said_of(
        trainjob(family=[child(2)]), events=[event(child(), "FailedCreate", "a pod that could not be made before")]
    )
    assert "because" not in quiet
    assert re.search(rf"trainjob/{NAME} +Pending$", said_of(trainjob(family=[child(1)])), re.M)


def test_a_trainjob_whose_pods_are_recreated():
    text = "applying RestartJobSet failure policy action (first failed job: demo-trainjob-x-node-0)"
    jobset = thing("JobSet", NAME, {"conditions": [condition("Restarting", text)]})
    warning = event(jobset, "RestartJobSetFailurePolicyAction", text)
    said = said_of(trainjob(family=[jobset, child()]), events=[warning])
    assert re.search(rf"trainjob/{NAME} +Restarting\n +because: applying RestartJobSet", said)
    assert "remedy" not in said


@pytest.mark.parametrize(("restarts", "told"), [(0, ""), (1, ", pods recreated once"), (4, ", pods recreated 4 times")])
def test_a_trainjob_tells_how_often_its_pods_were_recreated(restarts, told):
    jobset = thing("JobSet", NAME, {"restarts": restarts})
    assert re.search(rf"trainjob/{NAME} +Running{told}$", said_of(trainjob(family=[jobset, child(2)])), re.M)
    assert re.search(rf"trainjob/{NAME} +Pending{told}$", said_of(trainjob(family=[jobset, child(1)])), re.M)
    jobset["status"]["conditions"] = [condition("Restarting", "a pod failed")]
    assert re.search(rf"trainjob/{NAME} +Restarting{told}$", said_of(trainjob(family=[jobset, child()])), re.M)


FAILED = {
    "for good": ("FailJobSetFailurePolicyAction", "applying FailJobSet", "not cured by another try: see its pods"),
    "too often": ("ReachedMaxRestarts", "jobset failed due to reaching max", "as often as backoffLimit allows"),
    "too late": ("DeadlineExceeded", "TrainJob exceeded its active deadline", "raise it (runPolicy"),
}


@pytest.mark.parametrize(("reason", "message", "answer"), FAILED.values(), ids=FAILED)
def test_a_trainjob_that_failed(reason, message, answer):
    status = {"conditions": [condition("Failed", message, reason=reason)]}
    says(said_of(trainjob(status)), message, answer)


def test_a_runtime_that_is_deleted_names_its_users():
    runtime = thing("TrainingRuntime", NAME, deletionTimestamp=OLD, namespace="vision")
    answer = f"wait until they have ended, or kubectl delete trainjob {NAME} -n vision"
    says(said_of(trainjob(family=[child(2)]), **{trainjobs.RUNTIMES: [runtime]}), f"still: {NAME}", answer)
    assert "remedy" not in explain(**{trainjobs.RUNTIMES: [thing("TrainingRuntime", "demo")]}, pods=[over(0)])


def test_the_trainjobs_of_functions_belong_to_the_release_whose_runtime_they_use():
    own = thing("TrainJob", "a", spec=REF, labels={"app.kubernetes.io/instance": "demo"})
    function = thing("TrainJob", "b", spec={"runtimeRef": {"kind": "TrainingRuntime", "name": "demo"}})
    others = [
        thing("TrainJob", "c", spec={"runtimeRef": {"kind": "ClusterTrainingRuntime", "name": "demo"}}),
        thing("TrainJob", "d", spec=REF, labels={"app.kubernetes.io/instance": "other"}),
    ]
    sets = [thing("JobSet", "b"), thing("JobSet", "c")]
    jobs = [thing("Job", "b-node-0", labels={trainjobs.JOBSET_NAME: "b"})]
    kinds = {trainjobs.TRAINJOBS: [own, function, *others], trainjobs.JOBSETS: sets, trainjobs.CHILDREN: jobs}
    found = trainjobs.list_own("demo", kinds)
    assert [one["metadata"]["name"] for one in found] == ["a", "b"]
    assert [one["metadata"]["name"] for one in found[1]["family"]] == ["b", "b-node-0"]


def test_follow_reads_the_newest_first_pod_of_a_trainjob():
    labels = {trainjobs.JOBSET_NAME: NAME}
    pods = [
        thing("Pod", f"{NAME}-node-0-0-aaaaa", labels=labels),
        thing("Pod", f"{NAME}-node-0-0-bbbbb", labels=labels, creationTimestamp=YOUNG),
        thing("Pod", f"{NAME}-node-0-1-ccccc", labels=labels, creationTimestamp=YOUNG),
        thing("Pod", "another-node-0-0-ddddd", labels={trainjobs.JOBSET_NAME: "another"}, creationTimestamp=YOUNG),
    ]
    assert follow.leader(trainjob(), pods)["metadata"]["name"].endswith("bbbbb")


def test_follow_reads_the_launcher_of_a_trainjob_under_mpi_whatever_started_later():
    labels = {trainjobs.JOBSET_NAME: NAME}
    launcher = thing("Pod", f"{NAME}-launcher-0-0-aaaaa", labels=labels)
    worker = thing("Pod", f"{NAME}-node-0-0-bbbbb", labels=labels, creationTimestamp=YOUNG)
    assert follow.leader(trainjob(), [launcher, worker]) == launcher
    assert follow.leader(trainjob(), [worker]) == worker


def test_kinds_that_are_missing_matter_where_the_release_needs_them():
    missing = [{"kind": kind} for kind in (trainjobs.TRAINJOBS, trainjobs.RUNTIMES, trainjobs.JOBSETS)]
    says(explain(missing_kinds=missing), "does not know trainjobs", "install Kubeflow Trainer, if the release trains")
    assert "crd/" not in explain(missing_kinds=missing, jobs=[thing("Job", "demo-dataset", {"active": 1})])
    v1 = [{"kind": kind} for kind in inventory.OPERATORS]
    assert "crd/" not in said_of(trainjob(family=[child(2)]), missing_kinds=v1)
    said = said_of(trainjob(family=[child(2)]), missing_kinds=[{"kind": trainjobs.JOBSETS}])
    says(said, "does not know jobsets.jobset.x-k8s.io", "install JobSet")


def test_a_trainer_that_drops_fields_is_named_with_the_remedy():
    old = definition(trainjobs.TRAINJOBS, "v1alpha1", "runtimeRef", "trainer.numProcPerNode", "managedBy")
    says(said_of(trainjob(family=[child(2)]), crds=[old]), "does not know spec.activeDeadlineSeconds, spec.runtimeP",
         "Kubeflow Trainer 2.3.0 was tested")  # fmt: skip
    assert "crd/" not in explain(crds=[old], pods=[over(0)])
    told = [{"version": "v2.1.0"}]
    says(said_of(trainjob(family=[child(2)]), trainer_version=told), "is v2.1.0, and", "update Kubeflow Trainer to 2.3")
    assert "remedy" not in said_of(trainjob(family=[child(2)]), trainer_version=[{"version": "v2.3.0"}])


def test_a_release_that_is_written_for_an_older_trainer_fits_that_one():
    old = definition(trainjobs.TRAINJOBS, "v1alpha1", "runtimeRef", "trainer.numProcPerNode", "managedBy")
    job = trainjob(family=[child(2)], annotations={trainjobs.VERSION: "2.1"})
    assert "remedy" not in said_of(job, crds=[old], trainer_version=[{"version": "v2.1.0"}])
    newer = said_of(job, trainer_version=[{"version": "v2.3.0"}])
    says(newer, "is v2.3.0, and trainjob.version is 2.1", "set trainjob.version to the cluster's")


SKEWED = {
    ("", ""): "does not tell its Kubeflow Trainer's version",
    ("v2.1.0", ""): r"is v2\.1\.0, .*fields of 2\.2 and later, .*update Kubeflow Trainer",
    (
        "v2.2.1",
        "2.3.0",
    ): r"is v2\.2\.1, and the SDK writes TrainJobs of 2\.3\.0: .*update .* to 2\.3\.0, or install .* 2\.2$",
    ("v3.0.0", "2.3.0"): r"install an SDK whose kubeflow-trainer-api is 3\.x",
}


@pytest.mark.parametrize(("trainer", "api"), SKEWED, ids=" ".join)
def test_versions_that_do_not_fit_are_both_named_with_the_remedy(trainer, api):
    said = versions.skew(trainer, api)
    assert re.search(SKEWED[trainer, api], said), said
    assert "\n" not in said


@pytest.mark.parametrize(("trainer", "api"), [("v2.3.0", "2.3.0"), ("v2.3.0", ""), ("2.2.1", ""), ("v2.4.1", "2.3.0")])
def test_versions_that_fit_are_passed_over(trainer, api):
    assert versions.skew(trainer, api) == ""


def test_a_jobset_whose_deletion_starts_a_failed_trainjob_again_is_named():
    held = thing("JobSet", NAME, spec={"ttlSecondsAfterFinished": 600})
    failed = trainjob({"conditions": [condition("Failed", "exit code 2")]}, [held])
    for trainer in ("", "v2.1.0", "v2.3.0"):
        said = said_of(failed, trainer_version=[{"version": trainer}])
        assert re.search(rf"jobset/{NAME} +deleted by its TTL\n +because: 600 s after a failure, and then ", said)
        assert f"remedy:  kubectl patch jobset {NAME} --type json" in said
    assert "jobset/" not in said_of(failed, trainer_version=[{"version": "v2.4.0"}])
    complete = trainjob({"conditions": [condition("Complete")]}, [held])
    assert "jobset/" not in said_of(complete, trainer_version=[{"version": "v2.3.0"}])
    assert "jobset/" in said_of(complete, trainer_version=[{"version": "v2.1.0"}])
    kept = trainjob({"conditions": [condition("Failed")]}, [thing("JobSet", NAME)])
    assert "jobset/" not in said_of(kept, trainer_version=[{"version": "v2.3.0"}])
