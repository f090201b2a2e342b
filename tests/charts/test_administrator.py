"""What an administrator makes for a team: roles for its releases and commands and nothing else, a volume of NFS."""

import re

import yaml

from trainyard.cluster import crds, inventory, kube, survey, trainjobs

from . import helm

FILE = helm.ROOT / "deploy" / "roles.yaml"
HERE, CLUSTER = (one for one in yaml.safe_load_all(FILE.read_text()) if one["kind"] in ("Role", "ClusterRole"))
WRITES = {"get", "list", "watch", "create", "update", "patch", "delete"}
READS = {"get", "list"}
KEYS = (
    ("filebrowser.ingress", {"enabled": True, "host": "files.example.com"}),
    ("global.metrics.enabled", True),
    ("dataset.serviceAccount", {"create": True, "name": "data"}),
)


def granted(role: helm.Values, kind: str) -> set[str]:
    """Return what a role lets one do with a kind, written as `plural.group`."""
    plural, _, group = kind.partition(".")
    rules = [one for one in role["rules"] if plural in one["resources"] and group in one["apiGroups"]]
    return {verb for one in rules for verb in one["verbs"]}


def named(thing: helm.Values) -> str:
    """Return the kind of an object as `plural.group`."""
    group, _, _ = thing["apiVersion"].rpartition("/")
    plural = re.sub("ys$", "ies", f"{thing['kind'].lower()}s").replace("ingresss", "ingresses")
    return f"{plural}.{group}".rstrip(".")


def test_helm_may_keep_every_object_that_the_chart_renders() -> None:
    values = [helm.merged(helm.everything(), *(helm.at(*key) for key in KEYS)), *helm.EXAMPLES]
    kinds = {named(thing) for one in values for thing in helm.documents(helm.template(one))}
    assert {kind for kind in kinds if granted(HERE, kind) != WRITES} == set()
    assert {"ingresses.networking.k8s.io", "serviceaccounts", "trainingruntimes.trainer.kubeflow.org"} <= kinds
    written = {kind for rule in HERE["rules"] if "update" in rule["verbs"] for kind in rule["resources"]}
    assert written - {kind.partition(".")[0] for kind in kinds} == set()


def test_commands_may_look_at_all_that_they_ask_for() -> None:
    kinds = {*inventory.KINDS, *inventory.CAUSES, *crds.V1, trainjobs.TRAINJOBS, "events", "localqueues.kueue.x-k8s.io"}
    kinds = kinds - {"networkpolicies"} | {group(place) for place in survey.OWN.values()}
    assert {kind for kind in kinds if not granted(HERE, kind) >= READS} == set()
    assert granted(HERE, "pods") >= {"create", "delete", "watch"}
    assert granted(HERE, "pods/exec") == granted(HERE, "pods/portforward") == {"get", "create"}
    assert granted(HERE, "pods/log") >= {"get"}
    assert granted(HERE, "namespaces") == {"get"}


def group(place: kube.Kind) -> str:
    """Return where a kind is served as `plural.group`."""
    found = re.fullmatch(r"/apis/([^/]+)/\w+", place.path)
    return f"{place.plural}.{found[1]}" if found else place.plural


def test_doctor_may_read_the_cluster_and_write_nothing_there() -> None:
    wanted = {group(place) for place in survey.EVERYWHERE.values()}
    wanted |= {f"{kind}.kueue.x-k8s.io" for kind in survey.KUEUE if kind != "localqueues"}
    wanted |= {"namespaces", f"{survey.DEFINITIONS}.apiextensions.k8s.io"}
    assert {f"{plural}.{one}".rstrip(".") for rule in CLUSTER["rules"]
            for one in rule["apiGroups"] for plural in rule["resources"]} == wanted  # fmt: skip
    assert {verb for rule in CLUSTER["rules"] for verb in rule["verbs"]} == READS


def test_the_file_is_valid() -> None:
    helm.validate(FILE.read_text())


def test_the_page_about_nfs_has_a_volume_its_claim_and_values_that_fit() -> None:
    page = (helm.ROOT / "docs" / "storage.md").read_text().partition("## NFS alone")[2]
    manifests, values = re.findall(r"```yaml\n(.*?)```", page, re.S)[:2]
    helm.validate(manifests)
    volume, claim = helm.documents(manifests)
    meta = claim["metadata"]
    assert volume["spec"]["claimRef"] == {"namespace": meta["namespace"], "name": meta["name"]}
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert claim["spec"]["storageClassName"] == volume["spec"]["storageClassName"] == ""
    own = yaml.safe_load(values)
    text = helm.template(helm.merged(helm.everything(), own))
    assert not [one for one in helm.documents(text) if one["kind"] == "PersistentVolumeClaim"]
    pod = helm.only(text, "PyTorchJob")["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    claims = {one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"] if "persistentVolumeClaim" in one}
    assert claims == {meta["name"]}
    assert {one.get("subPath") for one in pod["containers"][0]["volumeMounts"]} >= {"data", "results"}
    assert pod["securityContext"]["runAsUser"] == 2001
