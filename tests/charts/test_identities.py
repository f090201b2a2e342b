"""Each part's own ServiceAccount, further objects of a release, and hosts, resolver, kernel and labels of pods."""

import re

import pytest

from . import helm

OWNERS = {
    "global.training": "training", "mpijob.launcher": "launcher", "dataset": "dataset", "evaluate": "evaluate",
    "filebrowser": "filebrowser",
}  # fmt: skip
COST = "example.com/cost"
ROLE = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/reader"}


def pods(values: helm.Values) -> dict[str, list[helm.Values]]:
    """The pod templates of a release, by the part whose settings they have."""
    found: dict[str, list[helm.Values]] = {part: [] for part in OWNERS.values()}
    for one in helm.documents(helm.template(values)):
        spec = one.get("spec", {})
        for role, replica in {**spec.get("pytorchReplicaSpecs", {}), **spec.get("mpiReplicaSpecs", {})}.items():
            found["launcher" if role == "Launcher" else "training"].append(replica["template"])
        if one["kind"] == "TrainingRuntime":
            found["training"].append(spec["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"])
        if one["kind"] in ("Job", "Deployment"):
            found[one["metadata"]["labels"]["app.kubernetes.io/name"]].append(spec["template"])
    assert all(found.values())
    return found


def accounts(values: helm.Values) -> dict[str, helm.Values]:
    found = helm.documents(helm.template(values))
    return {one["metadata"]["name"]: one for one in found if one["kind"] == "ServiceAccount"}


def test_without_asking_there_is_none():
    assert accounts(helm.everything()) == {}
    for templates in pods(helm.everything()).values():
        for template in templates:
            assert "serviceAccountName" not in template["spec"]
            assert template["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize("owner", OWNERS)
def test_a_part_has_its_own_and_no_other_gets_it(owner: str):
    shared = helm.at("global.serviceAccountName", "team")
    values = helm.merged(
        helm.everything(), shared, helm.at(f"{owner}.serviceAccount", {"create": True, "annotations": ROLE})
    )
    name = f"demo-{OWNERS[owner]}"
    (made,) = accounts(values).values()
    assert made["metadata"]["name"] == name
    assert made["metadata"]["annotations"] == ROLE
    assert made["automountServiceAccountToken"] is False
    for part, templates in pods(values).items():
        for template in templates:
            assert template["spec"]["serviceAccountName"] == (name if part == OWNERS[owner] else "team")
            assert template["spec"]["automountServiceAccountToken"] is False
    helm.validate(helm.template(values))


@pytest.mark.parametrize("owner", OWNERS)
def test_one_that_exists_is_named_and_its_token_mounted_where_asked_for(owner: str):
    values = helm.merged(helm.everything(), helm.at(f"{owner}.serviceAccount", {"name": "own", "token": True}))
    assert accounts(values) == {}
    for part, templates in pods(values).items():
        for template in templates:
            mine = part == OWNERS[owner]
            assert template["spec"].get("serviceAccountName") == ("own" if mine else None)
            assert template["spec"]["automountServiceAccountToken"] is mine


def test_a_jobs_own_account_wins():
    values = helm.merged(
        helm.everything(),
        helm.at("global.training.serviceAccount", {"create": True, "name": "trainers"}),
        helm.at("pytorchjob.training.serviceAccount.name", "torch"),
    )
    used = {one["spec"]["serviceAccountName"] for one in pods(values)["training"]}
    assert used == {"trainers", "torch"}
    assert set(accounts(values)) == used


def test_a_trainjobs_mpirun_has_the_account_that_is_created():
    values = helm.merged(
        helm.everything(),
        helm.at("global.training", {"operator": "trainjob", "config": {"strategy": "horovod"}}),
        helm.at("mpijob", {"enabled": False, "launcher": {"serviceAccount": {"create": True, "annotations": ROLE}}}),
    )
    made = accounts(values)
    assert made["demo-launcher"]["metadata"]["annotations"] == ROLE
    assert "serviceAccountName: demo-launcher" in helm.template(values).replace('"', "")


def test_a_job_that_asks_for_none_gets_none():
    values = helm.merged(
        helm.everything(),
        helm.at("global.training", {"operator": "mpijob", "serviceAccount": {"create": True}}),
        helm.at("mpijob.training.serviceAccount.create", False),
        helm.at("trainjob.enabled", False),
    )
    assert accounts(values) == {}


def test_one_account_with_the_rights_of_two_is_refused():
    """Also where the first of the two has no annotation."""
    values = helm.merged(
        helm.everything(),
        helm.at("global.training.serviceAccount.create", True),
        helm.at("mpijob.training.serviceAccount.annotations", ROLE),
    )
    with pytest.raises(helm.HelmError, match="creates the ServiceAccount demo-training, and another part creates one"):
        helm.template(values)
    named = helm.merged(values, helm.at("mpijob.training.serviceAccount.name", "reader"))
    assert set(accounts(named)) == {"demo-training", "reader"}


def test_what_every_pod_may_have_beside():
    own = {
        "hostAliases": [{"ip": "10.0.0.9", "hostnames": ["archive.example.com"]}],
        "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
        "securityContext": {
            "sysctls": [{"name": "net.ipv4.tcp_keepalive_time", "value": "60"}],
            "appArmorProfile": {"type": "Localhost", "localhostProfile": "trainers"},
        },
        "dnsPolicy": "Default",
        "hostUsers": False,
    }
    values = helm.merged(helm.everything(), *(helm.at(owner, own) for owner in OWNERS))
    for templates in pods(values).values():
        for template in templates:
            spec = template["spec"]
            assert spec["hostAliases"] == own["hostAliases"]
            assert spec["dnsConfig"] == own["dnsConfig"]
            assert spec["securityContext"].items() >= own["securityContext"].items()
            assert (spec["dnsPolicy"], spec["hostUsers"]) == ("Default", False)
    helm.validate(helm.template(values))
    helm.run("podsecurity", stdin=helm.template(values))


def test_names_of_a_pod_with_the_nodes_network_are_resolved_as_its_values_say():
    hosted = helm.merged(helm.everything(), helm.at("global.training.unrestricted.hostNetwork", True))
    own = helm.at("global.training", {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.10"]}})
    for values, policy in ((hosted, "ClusterFirstWithHostNet"), (helm.merged(hosted, own), "None")):
        assert {one["spec"].get("dnsPolicy") for one in pods(values)["training"]} == {policy}


LIMIT = {"kueue.x-k8s.io/max-exec-time-seconds": "86400"}
JOBS = ("global.training", "dataset", "evaluate")


def jobs(values: helm.Values) -> dict[str, helm.Values]:
    """Metadata of the jobs, by the part that makes them."""
    found = [one for one in helm.documents(helm.template(values)) if one["kind"].endswith("Job")]
    return {one["metadata"]["labels"]["app.kubernetes.io/name"]: one["metadata"] for one in found}


@pytest.mark.parametrize("owner", JOBS)
def test_labels_of_a_job_are_its_alone(owner: str):
    both = helm.merged(helm.everything(), helm.at("global.labels", {"team": "vision"}))
    values = helm.merged(both, helm.at(f"{owner}.jobLabels", LIMIT | {"team": "of-the-job"}))
    text = helm.template(values)
    helm.validate(text)  # no label twice
    mine = {"pytorchjob", "mpijob", "trainjob"} if owner == "global.training" else {owner}
    for part, metadata in jobs(values).items():
        own = LIMIT | {"team": "of-the-job"} if part in mine else {"team": "vision"}
        assert own.items() <= metadata["labels"].items()
        assert ("max-exec-time-seconds" in str(metadata["labels"])) == (part in mine)
    assert text.count("max-exec-time-seconds") == len(mine)


def test_only_labels_that_kueue_holds_fast_make_another_job_of_the_dataset_and_the_evaluation():
    plain = jobs(helm.everything())
    for labels, same in (({"team": "vision"}, True), (LIMIT, False)):
        found = jobs(helm.merged(helm.everything(), *(helm.at(f"{owner}.jobLabels", labels) for owner in JOBS)))
        for part in ("pytorchjob", "mpijob", "trainjob"):
            assert found[part]["name"] == plain[part]["name"], "a run goes on, as with another queue"
        for part in ("dataset", "evaluate"):
            assert (found[part]["name"] == plain[part]["name"]) is same


def test_annotations_of_all_pods_and_a_parts_own_that_win():
    shared = helm.at("global.podAnnotations", {"example.com/cost": "all", "example.com/team": "vision"})
    values = helm.merged(helm.everything(), shared, helm.at("dataset.podAnnotations", {"example.com/cost": "data"}))
    for part, templates in pods(values).items():
        for template in templates:
            cost = "data" if part == "dataset" else "all"
            assert template["metadata"]["annotations"] == {"example.com/cost": cost, "example.com/team": "vision"}


# Every kind of object that the chart makes, with the annotations that some have for themselves.
EVERY_KIND = helm.merged(
    helm.everything(),
    helm.at("global.metrics", {"enabled": True, "kind": "podMonitor", "rules": {"enabled": True}}),
    helm.at("networkPolicy.enabled", True),
    helm.at("tests.enabled", True),
    helm.at("secrets.external", {"store": {"name": "vault"}, "http": {"remoteKey": "team"}}),
    helm.at("filebrowser.ingress", {"enabled": True, "host": "files.example.com", "annotations": {COST: "the-page"}}),
    helm.at("dataset.serviceAccount", {"create": True, "annotations": ROLE}),
    helm.at("global.storage.data.annotations", {COST: "of-the-claim"}),
    *(helm.at(f"{owner}.jobAnnotations", {COST: "of-the-job"}) for owner in JOBS),
)  # fmt: skip


def test_annotations_of_every_object_and_its_own_that_win():
    shared = {COST: "all", "example.com/team": "", "argocd.argoproj.io/sync-options": "Replace=true"}
    text = helm.template(helm.merged(EVERY_KIND, helm.at("global.annotations", shared)))
    helm.validate(text)  # no annotation twice
    found = helm.documents(text)
    for one in found:
        kind, has = one["kind"], one["metadata"]["annotations"]
        owner = {"Ingress": "the-page", "ServiceAccount": "all"}.get(kind, "of-the-job" if "Job" in kind else "all")
        if one["metadata"]["name"] == "demo-data":
            owner = "of-the-claim"
        assert (kind, has[COST], has["example.com/team"]) == (kind, owner, "")
        kept = "Delete=false,Prune=false" if kind == "PersistentVolumeClaim" else "Replace=true"
        assert has["argocd.argoproj.io/sync-options"] == kept, "a claim stays when the release goes"
    written = "".join(path.read_text() for path in helm.templates())
    assert {one["kind"] for one in found} == {*re.findall(r"^ *kind: ([A-Z]\w+)$", written, re.MULTILINE)} - {"List"}
    assert [one["metadata"]["annotations"]["helm.sh/hook"] for one in found if one["kind"] == "Pod"] == ["test"]
    plain = helm.documents(helm.template(EVERY_KIND))
    assert [one.get("spec") for one in found] == [one.get("spec") for one in plain], "pods, and so jobs, stay"


@pytest.mark.parametrize("key", ["helm.sh/hook", "helm.sh/resource-policy", "argocd.argoproj.io/hook-delete-policy"])
def test_annotations_that_would_delete_or_leave_every_object_are_refused(key: str):
    with pytest.raises(helm.HelmError, match=f"global.annotations sets {key}, which .* jobs and claims too"):
        helm.template(helm.merged(helm.everything(), helm.at("global.annotations", {key: "test"})))


def test_standard_labels_on_pods_where_a_rule_asks_for_them():
    wanted = {"helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version"}
    own = helm.at("global.labels", {"app.kubernetes.io/version": "of-the-team"})
    asked = helm.merged(helm.everything(), helm.at("global.standardPodLabels", True))
    for values, there in ((helm.everything(), False), (asked, True)):
        for templates in pods(values).values():
            for template in templates:
                assert (wanted <= set(template["metadata"]["labels"])) is there
    both = helm.merged(helm.everything(), own, helm.at("global.standardPodLabels", True))
    helm.validate(helm.template(both))  # no label twice
    assert pods(both)["dataset"][0]["metadata"]["labels"]["app.kubernetes.io/version"] == "of-the-team"


def test_further_objects_are_templates():
    domain = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "{{ .Release.Name }}-gib", "labels": {"team": "{{ .Values.global.labels.team }}"}},
        "data": {"nodes": "{{ .Values.global.training.nodes }}"},
    }
    both = helm.at("extraObjects", [domain, domain | {"metadata": {"name": "b"}}])
    values = helm.merged(helm.everything(), helm.at("global.labels.team", "vision"), both)
    objects = helm.documents(helm.template(values))
    found = [one for one in objects if one["metadata"]["name"] in ("demo-gib", "b")]
    assert len(found) == 2
    assert found[0]["metadata"]["labels"] == {"team": "vision"}
    assert found[0]["data"] == {"nodes": "2"}
    with pytest.raises(helm.HelmError, match="extraObjects\\[0\\] has no apiVersion or no kind"):
        helm.template(helm.merged(values, helm.at("extraObjects", [{"kind": "ConfigMap"}])))


def test_braces_of_another_template_pass_through_as_the_documents_write_them():
    page = (helm.ROOT / "docs" / "clusters.md").read_text()
    (written,) = re.findall(r"``(\{\{.*?\$labels.*?\}\})``", page)
    rule = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rule"}}
    objects = helm.at("extraObjects", [rule | {"data": {"summary": f"{written} is late"}}])
    found = helm.documents(helm.template(helm.merged(helm.everything(), objects)))
    (made,) = [one for one in found if one["metadata"]["name"] == "rule"]
    assert made["data"] == {"summary": "{{ $labels.pod }} is late"}


def test_a_bucket_that_is_mounted_outside_the_data_claim_is_a_source():
    mount = {
        "extraVolumes": [{"name": "bucket", "csi": {"driver": "gcsfuse.csi.storage.gke.io"}}],
        "extraVolumeMounts": [{"name": "bucket", "mountPath": "/mnt/bucket/"}],
        "source": {"url": "", "path": "/mnt/bucket/pets.zip"},
    }
    found = helm.documents(helm.template(helm.merged(helm.everything(), helm.at("dataset", mount))))
    (settings,) = [one["data"]["prepare.json"] for one in found if "prepare.json" in (one.get("data") or {})]
    assert helm.json.loads(settings)["source"] == {"kind": "path", "path": "/mnt/bucket/pets.zip"}
    beside = helm.merged(mount, helm.at("source.path", "/mnt/buckets/pets.zip"))
    with pytest.raises(helm.HelmError, match="where nothing is mounted"):
        helm.template(helm.merged(helm.everything(), helm.at("dataset", beside)))
