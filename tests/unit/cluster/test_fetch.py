"""trainyard fetch and trainyard send use a claim as the release's own pods do."""

import os

import pytest

from tests.charts import helm
from tests.charts.test_manners import pods
from trainyard.cluster import fetch, send
from trainyard.cluster.errors import KubeError


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


@pytest.mark.parametrize("writes", [False, True])
def test_the_pod_passes_the_restricted_standard_and_writes_only_to_send(writes):
    pod = fetch.idle_pod("fetch-x", fetch.source("demo", "results", as_pods(helm.everything())), writes=writes)
    said = helm.run("podsecurity", stdin=helm.yaml.safe_dump(pod))
    assert "0 findings" in said
    spec = pod["spec"]
    assert spec["containers"][0]["volumeMounts"][0]["readOnly"] is not writes
    assert spec["volumes"][0]["persistentVolumeClaim"]["readOnly"] is not writes


def sending(folder, *first: str) -> list[str]:
    """Return what a pod runs to send a folder, after other shell commands."""
    return ["sh", "-c", "; ".join([*first, fetch.SEND]), str(folder)]


def test_a_sender_that_says_much_does_not_stop_the_copy(tmp_path):
    (tmp_path / "claim").mkdir()
    (tmp_path / "claim/file").write_text("content")
    talk = "i=0; while [ $i -lt 20000 ]; do echo tar: file changed as we read it >&2; i=$((i+1)); done"
    (tmp_path / "here").mkdir()
    assert fetch.unpack(sending(tmp_path / "claim", talk), {}, tmp_path / "here") == ""
    assert (tmp_path / "here/file").read_text() == "content"
    said = fetch.unpack(sending("claim", talk, "echo the last word >&2", "exit 2"), {}, tmp_path / "here")
    assert said.endswith("the last word")


CUT = "error: error reading from error stream: read message: websocket: close 1006 (abnormal closure): unexpected EOF"


def copied(folder, *, tries: int, cut: str) -> str:
    """Copy a folder's `claim` to its `here`; a shell command shortens the first `tries` copies. Returns the error."""
    count = folder / "tries"
    first = f"echo >> {count}; [ $(wc -l < {count}) -gt {tries} ] || {{ sh -c '{fetch.SEND}' {folder}/claim | {cut}; }}"
    return fetch.copy(sending(folder / "claim", first), {}, folder / "here")


@pytest.fixture
def claim(tmp_path, monkeypatch):
    """A claim with two files, beside an empty folder that they are copied to."""
    monkeypatch.setattr(fetch, "PAUSE", 0)
    (tmp_path / "here").mkdir()
    (tmp_path / "claim").mkdir()
    for name in ("model.pth", "second.pth"):
        (tmp_path / "claim" / name).write_bytes(os.urandom(4096))
    return tmp_path / "claim"


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("breaks", "said"), [(2, ""), (9, CUT)])
def test_a_connection_that_breaks_is_made_again(claim, capsys, breaks, said):
    cut = f'head -c 5000; echo "{CUT}" >&2; exit 1'
    assert copied(claim.parent, tries=breaks, cut=cut) == said
    assert len((claim.parent / "tries").read_text()) == min(breaks + 1, fetch.TRIES)
    assert (files(claim) == files(claim.parent / "here")) == (not said)
    assert f"copying again (1 of {fetch.TRIES}): {CUT}" in capsys.readouterr().err


@pytest.mark.parametrize("place", [0, 512, 700, 5120, 9728, 20480])  # between two files, too, and only the mark lost
@pytest.mark.parametrize(("breaks", "said"), [(2, ""), (9, fetch.CUT_OFF)])
def test_a_copy_that_is_cut_off_without_a_word_begins_again(claim, capsys, place, breaks, said):
    assert copied(claim.parent, tries=breaks, cut=f"head -c {place}; exit 0") == said
    assert len((claim.parent / "tries").read_text()) == min(breaks + 1, fetch.TRIES)
    assert files(claim) == files(claim.parent / "here") or said
    assert f"copying again (1 of {fetch.TRIES}): {fetch.CUT_OFF}" in capsys.readouterr().err


def test_what_no_further_try_cures_ends_at_once(claim, tmp_path, capsys):
    said = "tar: /claim/runs/x: Cannot open: No such file or directory\ncommand terminated with exit code 2"
    assert fetch.copy(sending(claim, f"echo '{said}' >&2", "exit 2"), {}, tmp_path / "here") == said
    of_tar = fetch.copy(sending("/claim/runs/x"), {}, tmp_path / "here")
    assert "/claim/runs/x: Cannot open: No such file or directory" in of_tar
    (tmp_path / "full").write_text("a file where the copy shall be")
    assert fetch.copy(sending(claim), {}, tmp_path / "full") == "could not be unpacked here"
    assert "again" not in capsys.readouterr().err


def test_owners_and_modes_of_the_claim_stay_there(claim, tmp_path):
    here = tmp_path / "here"
    (claim / "program").write_text("content")
    (claim / "program").chmod(0o4777)
    if os.getuid() == 0:
        os.chown(claim / "program", 1000, 1000)
    assert fetch.unpack(sending(claim), {}, here) == ""
    found = (here / "program").stat()
    assert (found.st_uid, found.st_mode & 0o7022) == (os.getuid(), 0)


def test_two_fetches_of_a_claim_have_a_pod_each():
    names = {fetch.pod_name("a" * 70), fetch.pod_name("a" * 70)}
    assert len(names) == 2
    assert all(len(name) <= 63 for name in names)


def receiving(place, name: str = "send-1") -> list[str]:
    return ["sh", "-c", send.RECEIVE, str(place), name]


def test_a_sent_folder_appears_whole_or_not_at_all(tmp_path):
    (source := tmp_path / "pictures/ash").mkdir(parents=True)
    (source / "1.jpg").write_text("content")
    (source / "1.jpg").chmod(0o600)
    claim = tmp_path / "claim"
    place = claim / "raw" / "trees"
    script = tmp_path / "receive"
    script.write_text(send.RECEIVE)
    for cut in (512, 700, 1024, 1536):  # between two files, too
        command = ["sh", "-c", f'head -c {cut} | sh -c "$(cat {script})" {place} send-1']
        assert send.pack(tmp_path / "pictures", command, dict(os.environ)), cut
        assert list((claim / "raw").iterdir()) == [], cut
    assert send.pack(tmp_path / "pictures", receiving(place), dict(os.environ)) == ""
    assert (place / "ash/1.jpg").read_text() == "content"
    assert (place / "ash/1.jpg").stat().st_mode & 0o777 == 0o644
    assert "it is there already" in send.pack(tmp_path / "pictures", receiving(place), dict(os.environ))
    assert [path.name for path in (claim / "raw").iterdir()] == ["trees"]


def test_what_cannot_be_sent_is_named(tmp_path):
    what = fetch.source("demo", "data", as_pods(helm.everything()))
    with pytest.raises(KubeError, match="is no folder"):
        send.send("default", what, tmp_path / "nothing", "raw")
    said = send.pack(tmp_path / "nothing", ["cat"], dict(os.environ))
    assert "nothing" in said
