"""trainyard fetch and trainyard send use a claim as the release's own pods do."""

import os
import shutil
import subprocess

import pytest

from tests import patience
from tests.charts import helm
from tests.charts.test_manners import pods
from tests.fakes import objects
from trainyard.cluster import claim_source, connection, fetch, published, send
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
    results, data = (claim_source.source("demo", which, shared) for which in ("results", "data"))
    assert (results.claim, results.folder) == ("nfs", "team-a/out")
    assert (data.claim, data.folder) == ("nfs", "sets")
    assert results.like["securityContext"]["runAsUser"] == 2001
    assert results.like["imagePullSecrets"] == [{"name": "regcred"}]
    assert results.image.startswith("registry.example.com/team/trainyard-")


def test_a_claim_may_be_named_and_an_image_given():
    shared = as_pods(helm.everything())
    assert claim_source.source("demo", "results", shared).claim == "demo-results"
    assert claim_source.source("demo", "elsewhere", shared).claim == "elsewhere"
    assert claim_source.source("demo", "results", [], "registry.example.com/i:1")[:3] == (
        "demo-results",
        "",
        "registry.example.com/i:1",
    )
    with pytest.raises(KubeError, match="--image"):
        claim_source.source("demo", "results", [])


@pytest.fixture
def held(tmp_path, monkeypatch):
    """An API server that takes pods and starts none, and little time to wait for them."""
    monkeypatch.setattr(fetch, "STARTING", (0.1, 0.1))
    kinds = {"pods": ("v1", "Pod"), "events": ("v1", "Event")}
    with objects.running({"pods": [], "events": []}, kinds) as server:
        server.says = ""
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "kubeconfig")))
        connection._connected.cache_clear()
        yield server
        connection._connected.cache_clear()


NEW = {"kind": "Pod", "metadata": {"name": "p", "labels": fetch.MARK}, "spec": {}, "status": {"phase": "Pending"}}


def test_what_a_pod_waits_for_is_said_before_it_is_given_up(held, capsys):
    about = {"uid": "uid-p", "kind": "Pod", "name": "p"}
    event = {"involvedObject": about, "type": "Warning", "reason": "FailedScheduling", "message": "0/1 nodes are free"}
    held.objects["events"].append({"metadata": {"name": "e", "namespace": "vision"}, **event})
    said = "pod/p is Pending, not ready: 0/1 nodes are free"
    with pytest.raises(KubeError, match=said), fetch.running("vision", NEW):
        pytest.fail("it is not ready")
    assert capsys.readouterr().err == "waiting: pod/p is Pending, not ready: 0/1 nodes are free\n"


def test_a_pod_that_is_late_is_waited_for(held, capsys):
    def come(path: str) -> None:
        if path.endswith("/events"):  # asked for what it waits for
            ready = {"type": "Ready", "status": "True"}
            held.objects["pods"][0]["status"] = {"phase": "Running", "conditions": [ready]}

    held.seen = come
    held.forbidden = {"events"}  # to a user who may copy all the same
    with fetch.running("vision", NEW):
        assert capsys.readouterr().err == "waiting: pod/p is Pending, not ready: see kubectl describe pod\n"


@pytest.mark.parametrize("writes", [False, True])
def test_the_pod_passes_the_restricted_standard_and_writes_only_to_send(writes):
    pod = fetch.idle_pod("fetch-x", claim_source.source("demo", "results", as_pods(helm.everything())), writes=writes)
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


def test_the_image_is_that_of_what_trains_or_prepares_before_the_file_browsers(monkeypatch):
    everything = as_pods(helm.everything())
    browser = [pod for pod in everything if claim_source.part(pod) == "filebrowser"]
    browser[0]["spec"]["containers"][0]["image"] = "registry.example.com/browser:2"
    dataset = [pod for pod in everything if claim_source.part(pod) == "dataset"]
    results = claim_source.source("demo", "results", browser + dataset)  # no dataset's pod mounts them
    assert (results.claim, results.image) == ("demo-results", dataset[0]["spec"]["containers"][0]["image"])
    alone = claim_source.source("demo", "results", browser)
    assert alone.image == "registry.example.com/browser:2"
    monkeypatch.setattr(published, "REGISTRY", "registry.example.com/public")
    image = claim_source.source("demo", "results", browser).image
    assert image == f"registry.example.com/public/trainyard-pytorch:{published.VERSION}"


def named(*more: str) -> claim_source.ClaimSource:
    return claim_source.named_by(fetch.parser().parse_args(["run", "runs", "here", "-n", "vision", *more]))


def put_claim(cluster, name: str) -> None:
    cluster.put("persistentvolumeclaims", {"metadata": {"name": name, "uid": name, "namespace": "vision"}})


@pytest.mark.parametrize("operator", ["pytorchjob", "mpijob"])
def test_a_job_whose_pods_have_gone_tells_claim_folder_and_image(here, operator):
    values = helm.merged(helm.everything(), {"global": {"storage": NFS, "training": {"operator": operator}}})
    for document in helm.documents(helm.template(values, release="run")):
        if document["kind"].lower() == operator:
            here.put(f"{operator}s", document)
    found = named()
    assert (found.claim, found.folder) == ("nfs", "team-a/out")
    assert found.image.startswith("registry.example.com/team/trainyard-")
    assert found.like["securityContext"]["runAsUser"] == 2001


def test_after_a_delete_the_image_of_another_release_or_the_published_one_is_taken(here, monkeypatch):
    put_claim(here, "run-results")
    with pytest.raises(KubeError, match="name one that has sh and tar with --image"):
        named()
    monkeypatch.setattr(published, "REGISTRY", "registry.example.com/public")
    assert named().image == f"registry.example.com/public/trainyard-pytorch:{published.VERSION}"
    values = helm.merged(helm.everything(), {"global": {"image": {"pullSecrets": ["regcred"]}}})
    for pod in as_pods(values):
        here.put("pods", {**pod, "kind": "Pod"})
    found = named()
    assert (found.claim, found.folder) == ("run-results", "")
    assert found.image.startswith("registry.example.com/team/trainyard-")
    assert found.like == claim_source.PLAIN | {"imagePullSecrets": [{"name": "regcred"}]}
    assert named("--image", "registry.example.com/i:1").image == "registry.example.com/i:1"


def test_a_claim_that_is_not_there_is_named_before_a_pod_is_made(here):
    with pytest.raises(KubeError, match=r"namespace vision has no claim run-results: .* with --claim"):
        named("--image", "registry.example.com/i:1")
    for pod in as_pods(helm.everything()):  # of release demo; none of them mounts it
        here.put("pods", {**pod, "kind": "Pod"})
    args = fetch.parser().parse_args(["demo", "runs", "here", "-n", "vision", "--claim", "elsewhere"])
    with pytest.raises(KubeError, match="namespace vision has no claim elsewhere"):
        claim_source.named_by(args)
    here.fault = lambda path, query: (403, "may not") if path.endswith("/persistentvolumeclaims") else None
    assert claim_source.named_by(args).claim == "elsewhere", "a user who may not list claims"


def stay(first: str) -> "subprocess.CompletedProcess[str]":
    """Run the pod's script with a space of processes of its own, after a shell command; a look takes no time."""
    line = [
        "unshare",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
        "sh",
        "-c",
        f"{first}\n{fetch.STAY}",
        "3",
        "0",
    ]
    done = patience.run(line)
    if "unshare:" in done.stderr:
        pytest.skip(f"no namespaces can be made here: {done.stderr}")
    return done


def test_the_pod_ends_by_itself_but_never_under_a_copy():
    count = "looks=0; trap 'echo $looks' EXIT; sleep() { looks=$((looks + 1))"
    assert stay(f"{count}; }}").stdout == "3\n"
    # the 50th look finds no copy any more
    copy = "tail -f /dev/null & copy=$!"
    done = stay(f"{copy}; {count}; [ $looks != 50 ] || {{ kill $copy; wait $copy 2> /dev/null; }}; }}")
    assert (done.stdout, done.returncode) == ("52\n", 0), done


def changing(claim, change: str) -> list[str]:
    """Return what sends a claim, on which a shell command changes something while tar reads its first large file."""
    gate = f"{{ head -c 100000; {change}; cat; }}"
    return ["bash", "-o", "pipefail", "-c", f"sh -c '{fetch.SEND}' {claim} | {gate}"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run that trains, on a claim: nothing of it fits into a pipe."""
    monkeypatch.setattr(fetch, "PAUSE", 0)
    for name in ("metrics.jsonl", "checkpoints/step-1/a", "checkpoints/step-1/b", "heartbeats/.rank-0.json.host-1.tmp"):
        (tmp_path / "claim" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "claim" / name).write_bytes(b"0123456789abcde\n" * 65536)
    (tmp_path / "here").mkdir()
    return tmp_path / "claim"


def test_a_file_that_grows_during_the_copy_is_noted(run, capsys):
    before = (run / "metrics.jsonl").read_bytes()
    for name in ("checkpoints", "heartbeats"):
        shutil.rmtree(run / name)
    assert fetch.copy(changing(run, f"echo more >> {run}/metrics.jsonl"), {}, run.parent / "here") == ""
    assert (run.parent / "here/metrics.jsonl").read_bytes() == before
    said = "fetch: changed during the copy, and is here as it was when it was read: metrics.jsonl\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    "change", ["rm -r {run}/checkpoints/*", ": > {run}/checkpoints/step-1/a; : > {run}/checkpoints/step-1/b"]
)
def test_a_checkpoint_that_is_removed_or_cut_during_the_copy_is_named(run, change):
    shutil.rmtree(run / "heartbeats")
    (run / "metrics.jsonl").unlink()
    said = fetch.copy(changing(run, change.format(run=run)), {}, run.parent / "here")
    assert said.startswith("removed or cut while it was copied: checkpoints/step-1/"), said
    assert said.endswith("copy again to another folder, or less, such as published or the newest of checkpoints")


def test_what_a_run_renames_when_it_is_written_is_not_missed(capsys):
    gone = "tar: ./{}: File removed before we read it\n"
    passing = gone.format("heartbeats/.rank-0.json.host-1-ab.tmp") + gone.format("leases/00000007/step-1/model")
    further = 'Defaulted container "files" out of: files, mesh\n'
    assert fetch.lost_of(f"{further}{passing}command terminated with exit code 1\n") == ""
    assert "run/model.tmp" in fetch.lost_of(passing + gone.format("run/model.tmp"))
    assert fetch.lost_of(passing + "tar: ./x: Cannot open: Permission denied\n").endswith("Permission denied\n")
    assert capsys.readouterr().err == ""


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
    receiving = send.receiving(tmp_path / "pictures", str(place), "send-1")
    assert send.pack(tmp_path / "pictures", receiving, dict(os.environ)) == ""
    assert (place / "ash/1.jpg").read_text() == "content"
    assert (place / "ash/1.jpg").stat().st_mode & 0o777 == 0o644
    assert "it is there already" in send.pack(tmp_path / "pictures", receiving, dict(os.environ))
    assert [path.name for path in (claim / "raw").iterdir()] == ["trees"]


def test_a_sent_file_appears_whole_under_the_name_that_it_gets(tmp_path):
    (tmp_path / "-an archive.zip").write_bytes(os.urandom(4096))
    (tmp_path / "link.zip").symlink_to("-an archive.zip")
    place = tmp_path / "claim/raw/set.zip"
    for cut in (512, 1024, 4608):
        script = 'cut=$1; shift; head -c $cut | sh "$@"'
        for given in (tmp_path / "-an archive.zip", tmp_path / "link.zip"):
            command = ["sh", "-c", script, "sh", str(cut), *send.receiving(given, str(place), "send-1")[1:]]
            assert send.pack(given, command, dict(os.environ)), cut
        assert list(place.parent.iterdir()) == [], cut
    given = tmp_path / "link.zip"
    assert send.pack(given, send.receiving(given, str(place), "send-1"), dict(os.environ)) == ""
    assert [path.name for path in place.parent.iterdir()] == ["set.zip"]
    assert not place.is_symlink()
    assert place.read_bytes() == given.read_bytes()
    assert "it is there already" in send.pack(given, send.receiving(given, str(place), "send-1"), dict(os.environ))


def test_what_cannot_be_sent_is_named(tmp_path):
    what = claim_source.source("demo", "data", as_pods(helm.everything()))
    with pytest.raises(KubeError, match="nothing is not there"):
        send.send("default", what, tmp_path / "nothing", "raw")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(KubeError, match="pipe is neither a file nor a folder"):
        send.send("default", what, tmp_path / "pipe", "raw")
    said = send.pack(tmp_path / "nothing", ["cat"], dict(os.environ))
    assert "nothing" in said
