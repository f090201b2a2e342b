"""The command doctor on an API server on loopback: what it prints, writes and creates, and that nothing stays."""

import json
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime

import pytest
import yaml

from tests import patience, ports
from tests.charts import helm
from tests.fakes import objects
from tests.unit.cluster.clusters import NAMESPACE, ROOT, VALUES, asking, sound, stamp
from trainyard.cluster import connection, doctor, proposal, published, survey
from trainyard.cluster import helm as helm_program
from trainyard.cluster.checks import probe_objects, probe_removal
from trainyard.cluster.demand import Demand, assume


def test_a_sound_cluster_is_said_to_be_one_and_nothing_stays(cluster, run):
    code, said = run()
    assert code == 0, said
    assert "nothing found: nothing would stop the run of" in said
    assert {line.split()[0] for line in said.splitlines()[:-2]} == {"ok"}, said
    assert "nfs binds ReadWriteMany (a probe claim" in said
    assert {plural for plural, _ in cluster.created} == {"persistentvolumeclaims", "pods"}
    assert sorted(cluster.created) == sorted(cluster.deleted)
    kinds = {thing["kind"] for thing in cluster.tried}
    assert {"PyTorchJob", "PersistentVolumeClaim", "ConfigMap", "Job", "NetworkPolicy", "Pod"} <= kinds


def test_nothing_is_created_without_probes(cluster, run):
    code, said = run("--no-probe")
    assert code == 0, said
    assert cluster.created == []
    assert "unproven storage" in said
    assert "nothing is created with --no-probe" in said


def test_findings_have_a_remedy_and_end_with_1(cluster, run):
    cluster.objects["deployments"][0]["spec"]["replicas"] = 0
    code, said = run("--no-probe")
    assert code == 1
    assert "error    operators    deployment/training-operator: training-operator is scaled to 0" in said
    assert "remedy: kubectl -n kubeflow scale deployment/training-operator --replicas=1" in said
    assert "1 error: the run of" in said


def test_json_has_the_findings_and_what_is_sound(cluster, run):
    cluster.objects["localqueues"].clear()
    code, said = run("--no-probe", "--json")
    found = json.loads(said)
    assert code == 1
    (one,) = found["findings"]
    assert one.keys() == {"check", "level", "object", "seen", "remedy"}
    assert (one["check"], one["level"], one["object"]) == ("queues", "error", "localqueue/vision")
    assert {each["check"]: each for each in found["checks"]}["operators"]["sound"].startswith("training-operator 1.9.4")
    assert found["rendered"] is True


def test_a_class_that_binds_for_one_node_only_is_named_with_another_that_shares(cluster, run):
    other = json.loads(json.dumps(cluster.objects["storageclasses"][0]))
    other["metadata"] |= {"name": "ceph", "annotations": {}}
    cluster.objects["storageclasses"].append(other)
    cluster.binds = {("nfs", "ReadWriteOnce"), ("ceph", "ReadWriteMany")}
    code, said = run("--seconds", "2")
    assert code == 1
    assert "has not bound a ReadWriteMany claim in" in said
    assert "only supports ReadWriteOnce" in said
    assert "set global.storage.data.storageClass: ceph, which binds ReadWriteMany" in said
    assert sorted(cluster.created) == sorted(cluster.deleted)


def test_a_class_that_retains_volumes_leaves_none_behind(cluster, run):
    cluster.objects["storageclasses"][0]["reclaimPolicy"] = "Retain"
    code, said = run()
    assert code == 0, said
    assert [plural for plural, _ in cluster.patched] == ["persistentvolumes"]


def test_what_admission_refuses_is_named_once(cluster, run):
    def admit(thing: dict) -> tuple[int, str] | None:
        named = thing["metadata"].get("labels", {}).get("app.kubernetes.io/part-of")
        text = f'pods "{thing["metadata"].get("name")}" is forbidden: ValidatingAdmissionPolicy teams: no team label'
        return (422, text) if thing["kind"] == "Pod" and named else None

    cluster.admit = admit
    code, said = run()
    assert code == 1
    assert said.count("no team label") == 1, said
    assert "remedy: a rule of the cluster refuses it: change in values what the message names" in said
    assert "ask for a role" not in said


@pytest.mark.parametrize(
    "plural", ["nodes", "storageclasses", "deployments", "resourcequotas", "endpointslices", "pods", "leases"]
)
def test_a_kind_that_is_forbidden_is_said(cluster, run, plural):
    cluster.forbidden = {plural}
    code, said = run("--no-probe")
    assert code == 0, said
    assert f"note     permissions  {plural}: could not look at {plural} (forbidden)" in said
    assert f"remedy: ask for a role that may list {plural}" in said


def test_a_probe_that_is_refused_proves_nothing(cluster, run):
    def admit(thing: dict) -> tuple[int, str] | None:
        probe = thing["metadata"].get("labels", {}).get("app.kubernetes.io/managed-by") == "trainyard-doctor"
        return (403, "exceeded quota: other") if probe else None

    cluster.admit = admit
    code, said = run()
    assert code == 0, said
    assert "the probe was refused: exceeded quota: other" in said


def test_a_run_without_values_asks_for_what_the_cluster_has(cluster, run):
    code, said = run("--no-probe", "--json", values=False)
    found = json.loads(said)
    assert found["asked"] == "a run on 1 node with 8 GPUs each (pytorchjob)"
    assert [one["object"] for one in found["findings"]] == ["pytorchjob"]  # the taint
    assert code == 1
    assert "a run on 3 nodes without GPUs" in run("--no-probe", "--nodes", "3", "--gpus-per-node", "0", values=False)[1]


@pytest.fixture
def without_helm(monkeypatch, tmp_path):
    """Neither the pinned Helm nor one on PATH is there."""
    monkeypatch.setattr(connection, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize(
    "words",
    [
        ["-f", "run.yaml"],
        ["--nodes", "2"],
        ["--gpus-per-node", "0"],
        ["--operator", "mpijob"],
        ["--values", "made.yaml"],
    ],
)
def test_without_helm_a_run_is_not_examined_and_the_remedy_comes_at_once(cluster, run, without_helm, words):
    asked: list[str] = []
    cluster.seen = asked.append
    code, said = run(*words, values=False)
    assert (code, said) == (2, f"doctor: helm is not on PATH: {helm_program.REMEDY}\n")
    assert (asked, cluster.created) == ([], [])


def test_without_helm_the_cluster_alone_is_examined_and_nothing_is_said_of_a_run(cluster, run, without_helm):
    code, said = run("--no-probe", values=False)
    assert code == 0, said
    assert "3 of 3 nodes take pods, 16 nvidia.com/gpu on 2 nodes\n" in said
    missing = f"helm is not on PATH: {helm_program.REMEDY}"
    assert f"unproven admission    server-side dry run of the run's objects: {missing}" in said
    assert said.endswith(f"\nnothing found on the cluster; no run was examined: {missing}\n")
    assert "nothing would stop" not in said
    assert cluster.tried == []
    assert json.loads(run("--no-probe", "--json", values=False)[1])["rendered"] is False
    cluster.objects["deployments"][0]["spec"]["replicas"] = 0
    assert run("--no-probe", values=False)[0] == 1


def test_values_that_the_chart_refuses_are_judged_by_no_objects_but_its_own(cluster, run, tmp_path):
    file = tmp_path / "refused.yaml"
    file.write_text(yaml.safe_dump(VALUES | {"dataset": {"sauce": {}}}))
    cluster.objects["nodes"].pop()
    code, said = run("--no-probe", "-f", str(file))
    assert code == 1
    assert "error    admission    values: the chart refuses them: dataset.sauce is not a key" in said
    assert "unproven admission    room, storage and a server-side dry run: there are no objects of the run" in said
    assert "room for" not in said
    assert said.splitlines()[-1].startswith("1 error: the run of ")


def test_a_namespace_that_is_not_there_is_said_and_default_is_probed(cluster, run):
    cluster.objects["namespaces"].clear()
    code, said = run()
    assert code == 0, said
    assert "warning  namespace    namespace/vision: it does not exist yet" in said
    assert "unproven admission    server-side dry run: namespace vision does not take objects" in said
    assert cluster.tried == []
    assert "nfs binds ReadWriteMany" in said


@pytest.mark.parametrize(("arguments", "words"), [
    (["-f", "none.yaml"], "-f none.yaml: No such file or directory"),
    (["--image", "python"], "--image python: write REGISTRY/FOLDER/NAME:TAG"),
])  # fmt: skip
def test_wrong_words_end_with_2(cluster, run, arguments, words):
    code, said = run(*arguments, values=False)
    assert (code, words in said) == (2, True), said


def test_a_key_that_stands_twice_in_a_file_ends_with_2(cluster, tmp_path, run):
    file = tmp_path / "twice.yaml"
    file.write_text("global: {}\nglobal: {}\n")
    code, said = run("-f", str(file))
    assert (code, "the key global stands twice in one map, in lines 1 and 2" in said) == (2, True), said


def test_no_cluster_ends_with_2(tmp_path, monkeypatch, capsys):
    nowhere = objects.Objects({}, {})
    nowhere.url = f"http://127.0.0.1:{ports.free()}"
    monkeypatch.setenv("KUBECONFIG", str(nowhere.kubeconfig(tmp_path / "kubeconfig")))
    connection._connected.cache_clear()
    assert doctor.main([]) == 2
    assert capsys.readouterr().err.startswith("doctor: no answer from http://127.0.0.1")
    connection._connected.cache_clear()


def started(cluster, folder):
    """A doctor that probes an hour, on a cluster where everything stays pending."""
    cluster.binds, cluster.says = set(), ""
    cluster.warn = lambda *_: None
    return subprocess.Popen(
        [sys.executable, "-m", "trainyard", "doctor", "-n", NAMESPACE, "--seconds", "3600", "--image",
        "r.example.com/x/y:1"],
        cwd=ROOT, env=os.environ | {"KUBECONFIG": str(cluster.kubeconfig(folder / "k"))},
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def has_removed_its_probes(cluster, process):
    _, said = patience.communicate(process)
    assert process.returncode == 130, said
    assert "the probes have been removed" in said
    assert sorted(cluster.created) == sorted(cluster.deleted)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_probes_are_removed_when_it_is_interrupted(cluster, tmp_path, sign):
    process = started(cluster, tmp_path)
    patience.wait("it has created probes", lambda: len(cluster.created) >= 3, patience.still)
    process.send_signal(sign)
    has_removed_its_probes(cluster, process)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_no_signal_interrupts_the_removal_of_probes(cluster, monkeypatch, sign):
    """As of a CI that cancels: it sends SIGINT, and SIGTERM seconds later."""
    dispose = probe_removal.dispose

    def signalled(*which, **how) -> object:
        try:
            os.kill(os.getpid(), sign)
            return dispose(*which, **how)
        except KeyboardInterrupt:
            pytest.fail("it was interrupted")

    monkeypatch.setattr(probe_removal, "dispose", signalled)
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with probe_removal.removing(NAMESPACE, datetime.now(UTC)) as made:
        made.create("pods", {"metadata": {"name": "probe", "labels": probe_objects.MARK}, "spec": {}})
    assert cluster.created == cluster.deleted == [("pods", "probe")]
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_probe_that_is_created_after_it_was_looked_for_is_removed_too(cluster, tmp_path):
    """It is interrupted while the API server still works on what it has asked for."""
    asked, looked, created = [], threading.Event(), threading.Event()

    def admit(thing):
        if not asked and "trainyard-doctor" in thing["metadata"].get("labels", {}).values():
            asked.append(thing["metadata"]["name"])
            assert created.wait(patience.IDLE)

    def seen(path):
        if asked and path.endswith("/persistentvolumeclaims"):
            looked.set()  # for pods before
        elif looked.is_set() and path.endswith("/pods") and not created.is_set():
            created.set()
            patience.wait("it is created", lambda: cluster.created, patience.still)

    cluster.admit, cluster.seen = admit, seen
    process = started(cluster, tmp_path)
    patience.wait("it creates a probe", lambda: asked, patience.still)
    process.send_signal(signal.SIGINT)
    has_removed_its_probes(cluster, process)
    assert cluster.created


def test_what_a_killed_one_left_is_removed(cluster, run):
    for name, made in (("doctor-old", stamp(-3600)), ("doctor-new", datetime.now(UTC).isoformat())):
        meta = {"name": name, "namespace": NAMESPACE, "labels": {"app.kubernetes.io/managed-by": "trainyard-doctor"}}
        meta |= {"creationTimestamp": "2020-01-01T00:00:00Z" if name == "doctor-old" else made, "uid": f"uid-{name}"}
        cluster.objects.setdefault("pods", []).append({"kind": "Pod", "metadata": meta, "spec": {}, "status": {}})
    run()
    assert ("pods", "doctor-old") in cluster.deleted
    assert ("pods", "doctor-new") not in cluster.deleted


def test_the_values_file_fits_the_cluster_and_the_chart_takes_it(cluster, run, tmp_path):
    file = tmp_path / "fits.yaml"
    run("--values", str(file), values=False)
    text = file.read_text()
    held = yaml.safe_load(text)
    training, shared = held["global"]["training"], held["global"]
    assert (training["nodes"], training["gpusPerNode"], training["gpuResource"]) == (2, 8, "nvidia.com/gpu")
    assert training["operator"] == "pytorchjob"
    assert shared["scheduling"] == {
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}], "queue": "vision",
    }  # fmt: skip
    assert (shared["storage"]["data"]["storageClass"], shared["storage"]["data"]["accessModes"]) == (
        "nfs",
        ["ReadWriteMany"],
    )
    assert "# training-operator 1.9.4 runs in namespace kubeflow" in text
    assert helm.documents(helm.template(held))
    code, said = run("-f", str(file), values=False)
    assert code == 0, said
    assert "nothing would stop" in said


def test_the_values_file_of_a_cluster_without_gpus_is_for_one_node_and_its_storage(cluster, run, tmp_path):
    cluster.objects["nodes"] = [one for one in cluster.objects["nodes"] if one["metadata"]["name"] == "cpu-1"]
    cluster.objects["localqueues"].clear()
    cluster.binds = {("nfs", "ReadWriteOnce"), ("", "ReadWriteOnce")}
    file = tmp_path / "fits.yaml"
    run("--values", str(file), "--seconds", "2", values=False)
    held = yaml.safe_load(file.read_text())
    assert held["global"]["training"]["processesPerNode"] == 1
    assert "gpusPerNode" not in held["global"]["training"]
    assert held["global"]["storage"]["results"]["accessModes"] == ["ReadWriteOnce"]
    code, said = run("-f", str(file), values=False)
    assert code == 0, said


def test_the_chart_is_the_environments_or_the_published_one_of_this_version(cluster, run, monkeypatch):
    monkeypatch.setenv("TRAINYARD_CHART", "/nowhere")
    assert run("--no-probe") == (2, "doctor: there is no chart /nowhere: name it with --chart\n")
    published_one = "oci://registry.example.com/team/charts/trainyard"
    monkeypatch.setattr(published, "CHART", published_one)
    assert published.version_options(published_one) == ["--version", published.CHART_VERSION]
    assert published.version_options("oci://registry.example.com/other") == []


def test_a_proposal_says_nothing_of_images_where_the_chart_names_its_own():
    seen = sound()
    named = assume("pytorchjob", 1, 8, "nvidia.com/gpu", "registry.example.com/team/trainyard-pytorch:0.1.0")
    for asked, lines in ((assume("pytorchjob", 1, 8, "nvidia.com/gpu", ""), 0), (named, 2)):
        held = Demand("a run", True, asked, asking(named).objects)
        text = proposal.write(seen, held, [])
        assert (text.count("registry:") + text.count("tag:")) == lines, text


def test_the_page_names_each_check(cluster, run):
    page = (ROOT / "docs" / "doctor.md").read_text()
    for one in json.loads(run("--no-probe", "--json")[1])["checks"]:
        assert f"\n| {one['check']} |" in page


def test_one_node_tells_how_full_a_claim_is_and_a_node_that_may_not_be_asked_is_the_last(cluster):
    paths: list[str] = []
    cluster.seen = paths.append
    used = {"pvcRef": {"name": "shared", "namespace": NAMESPACE}, "availableBytes": 5}
    for node in cluster.objects["nodes"]:
        node["pods"] = [{"volume": [used]}]  # as a kubelet's summary has it
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "shared"}}]
    pods = [{"metadata": {"namespace": NAMESPACE}, "spec": {"nodeName": name, "volumes": volumes}}
            for name in ("gpu-1", "gpu-2")]  # fmt: skip
    for forbidden, told in ((set(), [5]), ({"nodes"}, [])):
        cluster.forbidden = forbidden
        paths.clear()
        seen = sound()._replace(objects={"pods": pods})
        survey.read_usage(seen, ["shared"])
        assert [one["availableBytes"] for one in seen.of("volume-usage")] == told
        assert paths == ["/api/v1/nodes/gpu-1/proxy/stats/summary"]


def test_rights_of_an_operators_account_are_asked_with_its_groups(cluster):
    asked: list[dict] = []
    cluster.denies = asked.append
    assert survey.find_denials(sound()) == frozenset()
    (groups,) = {tuple(one["groups"]) for one in asked if ":kubeflow:" in one["user"]}
    assert groups == ("system:authenticated", "system:serviceaccounts", "system:serviceaccounts:kubeflow")


def test_a_namespace_that_may_not_be_read_is_probed_and_tried(cluster, run):
    cluster.forbidden = {"namespaces"}
    code, said = run()
    assert code == 0, said
    assert "objects and pods of the run would be admitted" in said
    assert {plural for plural, _ in cluster.created} == {"persistentvolumeclaims", "pods"}
