"""TrainJobs for each version of Kubeflow Trainer: what is rendered fits its CRDs, and what it lacks is refused."""

from typing import Any

import pytest

from trainyard.cluster import trainjobs

from . import helm

NEWEST = "2.3"
VERSIONS = ("2.1", "2.2", NEWEST)
KINDS = ("TrainJob", "TrainingRuntime")
HOROVOD = helm.at("global.training.config.strategy", "horovod")
# Values for which a TrainJob has all that the chart knows to render
FULL: helm.Values = helm.merged(
    helm.everything(),
    helm.at("global.training.operator", "trainjob"),
    helm.at("global.training.rdma.resource", "rdma/ib"),
    helm.at("global.metrics.enabled", True),
    helm.at("global.scheduling", {"queue": "vision", "gang": {"enabled": True, "queue": "a"}}),
    helm.at("trainjob.runPolicy", {"backoffLimit": 3, "ttlSecondsAfterFinished": 60, "suspend": True}),
)
CASES: dict[str, helm.Values] = {
    "small": helm.merged(helm.everything(), helm.at("global.training.operator", "trainjob")),
    "full": FULL,
    "MPI": helm.merged(helm.everything(), helm.at("global.training.operator", "trainjob"), HOROVOD),
    "MPI, full": helm.merged(FULL, HOROVOD),
    "the runtime alone": helm.merged(
        helm.everything(), helm.at("trainjob.job.enabled", False), helm.at("global.training.gpusPerNode", 4),
        helm.at("global.training.processesPerNode", 0),
    ),
}  # fmt: skip


def for_version(version: str | float, *values: helm.Values) -> str:
    """Render values for a version of Trainer."""
    return helm.template(helm.merged(*values, helm.at("trainjob.version", version)))


def fit(version: str, text: str) -> None:
    """Check TrainJobs and runtimes against the CRDs of a version; raises HelmError with what does not fit."""
    found = [one for one in helm.documents(text) if one["kind"] in KINDS]
    assert {one["kind"] for one in found} <= set(KINDS)
    assert found
    whole = "---\n".join(helm.yaml.safe_dump(one) for one in found)
    helm.validate(whole, "" if version == NEWEST else f"trainer-{version}")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_what_is_rendered_fits_the_crds_of_each_version(values: helm.Values, version: str) -> None:
    fit(version, for_version(version, values))


def unnamed(text: str) -> list[helm.Values]:
    """Return rendered objects without the note of the version."""
    found = helm.documents(text)
    for one in found:
        one["metadata"].get("annotations", {}).pop(trainjobs.VERSION, None)
        if not one["metadata"].get("annotations", True):
            del one["metadata"]["annotations"]
    return found


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_without_a_version_the_newest_is_rendered_and_a_patch_release_changes_nothing(values: helm.Values) -> None:
    newest = for_version(NEWEST, values)
    assert unnamed(newest) == helm.documents(helm.template(values))
    for same in ("v2.3.0", "2.3.1", 2.3):
        assert for_version(same, values) == newest


def test_the_version_changes_no_job_and_is_noted_for_the_commands() -> None:
    jobs = [helm.only(for_version(version, CASES["small"]), "TrainJob")["metadata"] for version in VERSIONS]
    assert len({job["name"] for job in jobs}) == 1
    assert [job["annotations"][trainjobs.VERSION] for job in jobs] == list(VERSIONS)


DEADLINE = helm.at("trainjob.runPolicy.activeDeadlineSeconds", 60)
ELSEWHERE = helm.at("trainjob.runPolicy.managedBy", "kueue.x-k8s.io/multikueue")
# Version, values, and the beginning of the message
REFUSED: list[tuple[str, helm.Values, str]] = [
    ("2.1", DEADLINE, "activeDeadlineSeconds needs Kubeflow Trainer 2.2, and trainjob.version is 2.1, which drops it"),
    ("2.1", ELSEWHERE, "trainjob.runPolicy.managedBy needs Kubeflow Trainer 2.3, and trainjob.version is 2.1"),
    ("2.2.1", ELSEWHERE, "trainjob.runPolicy.managedBy needs Kubeflow Trainer 2.3, and trainjob.version is 2.2"),
    ("2.4", {}, "trainjob.version is 2.4, and this chart knows Kubeflow Trainer 2.1, 2.2, 2.3: leave it out"),
    ("1.9", {}, 'trainjob.version is "1.9": write a version of Kubeflow Trainer, such as 2.3'),
]


@pytest.mark.parametrize(("version", "values", "said"), REFUSED)
def test_what_a_version_cannot_do_is_refused_with_the_key(version: str, values: helm.Values, said: str) -> None:
    with pytest.raises(helm.HelmError) as caught:
        for_version(version, CASES["small"], values)
    assert said in str(caught.value)


def test_a_refused_field_is_one_that_the_older_crd_lacks() -> None:
    text = for_version("2.2", CASES["small"], DEADLINE)
    fit("2.2", text)
    with pytest.raises(helm.HelmError, match="activeDeadlineSeconds"):
        fit("2.1", text)


def test_versions_are_not_told_apart_by_what_the_api_server_lists() -> None:
    """So the chart does not ask .Capabilities: all versions serve the same kinds in the same group and version."""
    served = []
    for version in VERSIONS:
        folder = helm.ROOT / "build" / "schemas" / ("" if version == NEWEST else f"trainer-{version}")
        served.append({path.name for path in folder.glob("*-trainer-*.json")})
    assert served[0] == served[1] == served[2]
    assert len(served[0]) == 3


def spec(values: helm.Values, kind: str, name: str = "") -> Any:
    """Return the spec of a TrainJob, or of the named TrainingRuntime."""
    found = [one for one in helm.documents(helm.template(values)) if one["kind"] == kind]
    return next(one["spec"] for one in found if name in ("", one["metadata"]["name"]))


def test_the_mpi_settings_of_a_command_of_its_own_are_the_launchers() -> None:
    """mpirun takes them from the environment: those of src/trainyard/pod/mpi.py, so far as they are always the same."""
    from trainyard.pod import mpi

    runtime = spec(CASES["MPI"], "TrainingRuntime", "demo")
    (launcher,) = [one for one in runtime["template"]["spec"]["replicatedJobs"] if one["name"] == "launcher"]
    (container,) = launcher["template"]["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    told = {f"OMPI_MCA_{key}": value for key, value in mpi.MCA.items()}
    del told["OMPI_MCA_orte_keep_fqdn_hostnames"]  # Trainer sets it
    agent = f"ssh -F {mpi.SSH_FOLDER}/ssh_config"
    told |= {"OMPI_MCA_plm_rsh_agent": agent}
    told |= {"OMPI_MCA_orte_launch_agent": f"python -m trainers.mpi orted {mpi.ENVIRONMENT_FILE}"}
    assert {key: value for key, value in env.items() if key.startswith("OMPI_MCA_")} == told
