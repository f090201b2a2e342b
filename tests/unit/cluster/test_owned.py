"""What commands delete is what they saw or made: by uid and label. Another's object of the same name stays."""

import copy
from types import SimpleNamespace

import pytest

from tests.fakes import objects
from tests.unit.cluster import things
from trainyard.cluster import claim_source, connection, delete, fetch, helm, kube
from trainyard.cluster.errors import KubeError, RefusedError, UnreachableError

OURS = {"app.kubernetes.io/managed-by": "somebody"}
WHAT = claim_source.ClaimSource("run-results", "", "i", {})
KINDS = {"pods": ("v1", "Pod"), "persistentvolumeclaims": ("v1", "PersistentVolumeClaim"), "events": ("v1", "Event")}
POD = fetch.idle_pod("fetch-1", WHAT)


@pytest.fixture
def held(tmp_path, monkeypatch):
    """An API server that takes pods and starts them."""
    monkeypatch.setattr(fetch, "STARTING", (0.1, 0.1))
    with objects.running({one: [] for one in KINDS}, KINDS) as server:
        server.says = ""
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "kubeconfig")))
        connection._connected.cache_clear()
        yield server
        connection._connected.cache_clear()


def pod(name: str, uid: str, **labels: str) -> dict:
    return {"kind": "Pod", "metadata": {"name": name, "uid": uid, "namespace": "vision", "labels": labels}, "spec": {}}


def test_only_the_object_that_was_seen_is_deleted(held):
    seen = pod("p", "first", **OURS)
    held.objects["pods"] = [pod("p", "second", **OURS)]
    with pytest.raises(RefusedError, match="pods/p was recreated or changed by somebody, and was left alone"):
        kube.delete("pods", "vision", seen, OURS)
    assert held.deleted == []
    held.objects["pods"] = [seen]
    kube.delete("pods", "vision", seen, OURS)
    kube.delete("pods", "vision", seen, OURS)  # it is gone
    assert (held.deleted, held.uids) == ([("pods", "p")], ["first"])


def test_what_is_not_labelled_as_ours_is_not_deleted(held):
    held.objects["pods"] = [pod("p", "first", team="x")]
    with pytest.raises(
        KubeError, match=r"pods/p is another's, without the label app.kubernetes.io/managed-by=somebody"
    ):
        kube.delete("pods", "vision", held.objects["pods"][0], OURS)
    assert held.deleted == []


def test_the_pod_of_a_copy_goes_and_a_strangers_of_its_name_stays(held, monkeypatch):
    monkeypatch.setattr(fetch, "start", lambda namespace, made: None)
    with fetch.running("vision", POD):
        assert len(held.objects["pods"]) == 1
    assert held.deleted == [("pods", "fetch-1")]
    with pytest.raises(RefusedError, match="left alone"), fetch.running("vision", POD):
        held.objects["pods"] = [pod("fetch-1", "a stranger's", **fetch.MARK)]
    assert held.deleted == [("pods", "fetch-1")]


def test_a_copys_pod_that_is_refused_deletes_nothing(held):
    held.objects["pods"] = [pod("fetch-1", "a stranger's", **fetch.MARK)]
    held.admit = lambda thing: (409, 'pods "fetch-1" already exists')
    with pytest.raises(RefusedError, match="already exists"), fetch.running("vision", POD):
        pass
    assert held.deleted == []


@pytest.mark.parametrize(("labels", "gone"), [(fetch.MARK, True), ({}, False)])
def test_a_copys_pod_whose_creation_had_no_answer_goes_if_it_is_labelled(held, monkeypatch, labels, gone):
    held.objects["pods"] = [pod("fetch-1", "unknown", **labels), pod("fetch-2", "other", **fetch.MARK)]

    def cut(*_: object) -> dict:
        raise UnreachableError("cut")

    monkeypatch.setattr(kube, "create", cut)
    with pytest.raises(UnreachableError, match="cut"), fetch.running("vision", POD):
        pass
    assert held.deleted == [("pods", "fetch-1")] * gone


def test_a_claim_that_was_made_anew_while_helm_uninstalled_stays(held, monkeypatch, ended):
    def claim(uid: str) -> dict:
        meta = things.meta("run-data", "run", "storage") | {"uid": uid}
        meta["annotations"] = {"meta.helm.sh/release-name": "run", "meta.helm.sh/release-namespace": "vision"}
        return {"kind": "PersistentVolumeClaim", "metadata": meta, "spec": {}, "status": {"phase": "Bound"}}

    def uninstall(*_: object, **__: object) -> SimpleNamespace:
        held.objects["persistentvolumeclaims"] = [copy.deepcopy(claim("second"))]
        return SimpleNamespace(returncode=0, stderr="")

    held.objects["persistentvolumeclaims"] = [claim("first")]
    monkeypatch.setattr(helm, "run", uninstall)
    code, _, said = ended(delete.main, "run", "-n", "vision", "--data", "--yes-delete-data")
    assert (code, held.deleted) == (2, [])
    assert not delete.has_gone("first", claim("first"))
    assert "persistentvolumeclaims/run-data was recreated or changed by somebody, and was left alone" in said
