"""scripts/fetch reads a claim as the release's own pods do."""

import re

import pytest

from commands import fetch
from commands.errors import KubeError

from . import helm
from .test_manners import pods


def as_pods(values: helm.Values) -> list[dict]:
    """The rendered pod templates, as pods."""
    found = []
    for document in helm.documents(helm.template(values)):
        for number, pod in enumerate(pods(document)):
            stamp = f"2026-11-21T12:{len(found):02d}:00Z"
            name = f"{document['metadata']['name']}-{number}"
            found.append({**pod, "metadata": {**pod["metadata"], "name": name, "creationTimestamp": stamp}})
    return found


NFS = {
    "uid": 2001,
    "gid": 2002,
    "data": {"existingClaim": "nfs", "subPath": "sets"},
    "results": {"existingClaim": "nfs", "subPath": "team-a/out"},
}


def test_the_claim_folder_and_user_are_those_of_the_pods():
    shared = as_pods(
        helm.merged(helm.everything(), {"global": {"storage": NFS, "image": {"pullSecrets": ["regcred"]}}})
    )
    results, data = (fetch.source("demo", which, shared) for which in ("results", "data"))
    assert (results.claim, results.folder) == ("nfs", "team-a/out")
    assert (data.claim, data.folder) == ("nfs", "sets")
    assert results.like["securityContext"]["runAsUser"] == 2001
    assert results.like["imagePullSecrets"] == [{"name": "regcred"}]
    assert results.image.startswith("registry.example.com/team/trainyard-")


def test_a_claim_may_be_named_and_an_image_given():
    shared = as_pods(helm.everything())
    assert fetch.source("demo", "results", shared).claim == "demo-results"
    assert fetch.source("demo", "elsewhere", shared).claim == "elsewhere"
    assert fetch.source("demo", "results", [], "registry.example.com/i:1")[:3] == (
        "demo-results",
        "",
        "registry.example.com/i:1",
    )
    with pytest.raises(KubeError, match="--image"):
        fetch.source("demo", "results", [])


def test_the_reading_pod_passes_the_restricted_standard():
    pod = fetch.reader_pod("fetch-x", fetch.source("demo", "results", as_pods(helm.everything())))
    said = helm.run("podsecurity", stdin=helm.yaml.safe_dump(pod))
    assert "0 findings" in said


def test_each_user_has_a_pod_of_his_own(monkeypatch):
    """A fetch deletes what an earlier one left under its name: that must not be another user's."""
    mine = fetch.pod_name("results")
    assert mine == fetch.pod_name("results")
    assert re.fullmatch(r"fetch-results-[0-9a-f]{8}", mine)
    monkeypatch.setattr(fetch.os, "getuid", lambda: 4711)
    assert fetch.pod_name("results") != mine
    assert len(fetch.pod_name("a" * 54 + "." + "b" * 99)) <= 63
