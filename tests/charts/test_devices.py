"""GPUs without a device plugin: by claims, by annotations or the node's own, for trainers and an evaluation."""

import re
from typing import Any

import pytest

from . import helm
from .test_identities import pods

TRAINING = "global.training"
GPUS = helm.merged(
    helm.everything(),
    helm.at(TRAINING, {"gpusPerNode": 1, "processesPerNode": 0}),
    helm.at("evaluate.gpus", 1),
)
CLAIM = [{"name": "gpus", "resourceClaimTemplateName": "h100"}]
OWN_CLAIM = [{"name": "gpu", "resourceClaimTemplateName": "one-h100"}]
HALF = {"gpu-fraction": "0.5"}
CLAIMED = helm.merged(GPUS, helm.at(f"{TRAINING}.resourceClaims", CLAIM), helm.at("evaluate.resourceClaims", OWN_CLAIM))
PARTLY = helm.merged(
    GPUS,
    helm.at(TRAINING, {"gpusBy": "annotations", "podAnnotations": HALF}),
    helm.at("evaluate.podAnnotations", HALF),
)
BY_NODE = helm.merged(GPUS, helm.at(f"{TRAINING}.gpusBy", "node"))


def devices(template: helm.Values) -> set[str]:
    """Names of the extended resources that the containers of a pod ask for."""
    spec = template["spec"]
    asked = [one.get("resources", {}) for one in [*spec["containers"], *spec.get("initContainers", [])]]
    return {name for one in asked for kind in ("requests", "limits") for name in one.get(kind, {}) if "/" in name}


def main(template: helm.Values) -> helm.Values:
    container: helm.Values = template["spec"]["containers"][0]
    return container


def preflight(template: helm.Values) -> list[str]:
    (found,) = [one["command"] for one in template["spec"]["initContainers"] if one["name"] == "preflight"]
    return list(found)


@pytest.mark.parametrize("said", [helm.at(f"{TRAINING}.gpuResource", ""), helm.at(f"{TRAINING}.gpusBy", "claims")])
def test_an_evaluation_has_gpus_by_its_own_claims_where_trainers_have_them_by_claims(said: helm.Values):
    found = pods(helm.merged(CLAIMED, said))
    for part, claim in (("training", CLAIM), ("evaluate", OWN_CLAIM)):
        for template in found[part]:
            assert template["spec"]["resourceClaims"] == claim
            assert main(template)["resources"]["claims"] == [{"name": claim[0]["name"]}]
    assert not any(devices(template) for templates in found.values() for template in templates)
    assert not any(
        "resourceClaims" in template["spec"] for part in ("dataset", "filebrowser") for template in found[part]
    )
    assert main(found["evaluate"][0])["command"][:3] == ["python", "-m", "trainers.evaluate"]
    helm.validate(helm.template(helm.merged(CLAIMED, said)))


def test_an_evaluation_may_have_them_in_another_way_than_the_trainers():
    claims = helm.merged(CLAIMED, helm.at(f"{TRAINING}.gpuResource", ""))
    by_plugin = helm.merged(claims, helm.at("evaluate", {"resourceClaims": [], "gpuResource": "amd.com/gpu"}))
    assert devices(pods(by_plugin)["evaluate"][0]) == {"amd.com/gpu"}
    assert "claims" not in main(pods(by_plugin)["evaluate"][0])["resources"]
    by_claims = helm.merged(GPUS, helm.at("evaluate", {"gpusBy": "claims", "resourceClaims": OWN_CLAIM}))
    assert devices(pods(by_claims)["evaluate"][0]) == set()
    assert all(devices(one) <= {"nvidia.com/gpu"} for one in pods(by_claims)["training"])


def test_a_scheduler_gives_a_part_of_a_gpu_by_an_annotation():
    """No device is requested; one container gets the part, so the preflight looks for none."""
    found = pods(PARTLY)
    for template in (*found["training"], *found["evaluate"]):
        assert template["metadata"]["annotations"] == HALF
        assert devices(template) == set()
    assert not any("--gpus" in preflight(template) for template in found["training"])
    jobs = {one["kind"]: one for one in helm.documents(helm.template(PARTLY))}
    assert jobs["PyTorchJob"]["spec"]["nprocPerNode"] == "1"
    assert jobs["TrainJob"]["spec"]["trainer"]["numProcPerNode"] == 1
    helm.validate(helm.template(PARTLY))
    helm.run("podsecurity", stdin=helm.template(PARTLY))


def test_a_node_shows_its_gpus_to_every_pod():
    found = pods(BY_NODE)
    assert not any(devices(template) for part in ("training", "evaluate") for template in found[part])
    checked = [preflight(template) for template in found["training"]]
    assert any("--gpus" in command for command in checked)


@pytest.mark.parametrize("values", [PARTLY, BY_NODE, helm.merged(CLAIMED, helm.at(f"{TRAINING}.gpusBy", "claims"))])
def test_another_way_is_another_job(values: helm.Values):
    names = [
        {one["metadata"]["name"] for one in helm.documents(helm.template(each)) if one["kind"].endswith("Job")}
        for each in (GPUS, values)
    ]
    assert {name.split("-")[1] for name in names[0] & names[1]} == {"dataset"}


def wrong(path: str, value: Any, base: helm.Values = GPUS) -> helm.Values:
    return helm.merged(base, helm.at(path, value))


REFUSED = {
    "claims of an evaluation that none names": (
        wrong("evaluate.resourceClaims", [], helm.merged(CLAIMED, helm.at(f"{TRAINING}.gpuResource", ""))),
        "name the claims in evaluate.resourceClaims, or set evaluate.gpuResource, such as nvidia.com/gpu",
    ),
    "claims that none names": (wrong("evaluate.gpusBy", "claims"), "name the claims in evaluate.resourceClaims"),
    "GPUs twice": (
        wrong("evaluate", {"gpusBy": "claims", "resources": {"limits": {"nvidia.com/gpu": 1}}}, CLAIMED),
        "evaluate.resources.limits holds nvidia.com/gpu, and evaluate.gpus is set: leave it out",
    ),
    "a claim twice": (
        wrong("evaluate.resourceClaims", OWN_CLAIM * 2, CLAIMED), "evaluate.resourceClaims has gpu twice: keep one of"
    ),
    "a plugin and another way": (
        wrong("evaluate", {"gpusBy": "node", "gpuResource": "amd.com/gpu"}),
        "evaluate.gpusBy is node, without a device plugin, and evaluate.gpuResource is a plugin's amd.com/gpu",
    ),
    "trainers' plugin and another way": (
        wrong(TRAINING, {"gpusBy": "node", "gpuResource": "amd.com/gpu"}), "leave one of them out"
    ),
    "trainers' claims that none names": (
        wrong(f"{TRAINING}.gpusBy", "claims"), "name the claims in global.training.resourceClaims"
    ),
    "no annotation of a GPU": (
        wrong(TRAINING, {"gpusBy": "annotations", "podAnnotations": {"example.com/team": "a"}}),
        "set in global.training.podAnnotations what your scheduler reads, such as gpu-fraction",
    ),
    "no annotation of a network": (
        wrong(TRAINING, {"gpusBy": "annotations", "podAnnotations": HALF, "rdma": {"by": "annotations"}}),
        "name the networks in global.training.podAnnotations",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def refusals() -> dict[str, str]:
    answers = helm.render_all([values for values, _ in REFUSED.values()])
    return {name: answer.get("error", "") for name, answer in zip(REFUSED, answers, strict=True)}


@pytest.mark.parametrize("name", REFUSED)
def test_a_way_without_its_gpus_or_beside_another_is_refused(name: str, refusals: dict[str, str]):
    assert REFUSED[name][1] in refusals[name]


def test_the_documents_own_gb200_by_claims_renders():
    page = (helm.ROOT / "docs" / "clusters.md").read_text()
    (block,) = re.findall(r"```yaml\n((?:(?!```).*\n)*?.*gpusBy: claims\n(?:(?!```).*\n)*?)```", page)
    values = helm.yaml.safe_load((helm.ROOT / "examples/clusters/gb200.yaml").read_text())
    found = helm.documents(helm.template(helm.merged(values, helm.yaml.safe_load(block))))
    (evaluation,) = [one["spec"]["template"] for one in found if one["kind"] == "Job"]
    assert evaluation["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    assert "nvidia.com/gpu:" not in helm.yaml.safe_dump([one for one in found if one["kind"] in ("Job", "PyTorchJob")])


def test_an_annotation_of_all_pods_counts():
    values = helm.merged(GPUS, helm.at(f"{TRAINING}.gpusBy", "annotations"), helm.at("global.podAnnotations", HALF))
    assert all(template["metadata"]["annotations"] == HALF for template in pods(values)["evaluate"])
