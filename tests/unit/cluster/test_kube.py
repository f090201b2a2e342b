"""How trainyard why, follow and fetch reach a cluster, and what they say where they cannot."""

import base64
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import patience, ports
from tests.e2e.cluster import watch
from tests.fakes import apiserver
from tests.fakes.apiserver import Cluster
from trainyard.cluster import claim_source, connection, fetch, kube
from trainyard.cluster import why as why_command
from trainyard.cluster.errors import KubeError, UnreachableError

ROOT = Path(__file__).resolve().parents[3]
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
LONG_AGO = "2026-11-21T11:00:00Z"
THING = {"kind": "Pod", "metadata": {"name": "a", "uid": "a", "labels": {"x": "1"}, "creationTimestamp": ""}}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with apiserver.running() as found:
        yield found


@pytest.fixture
def here(cluster, tmp_path, monkeypatch) -> Iterator[Cluster]:
    """The server, and this process as its client."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "kubeconfig")))
    monkeypatch.setattr(kube, "_KINDS", dict(kube._KINDS))
    connection._connected.cache_clear()
    yield cluster
    connection._connected.cache_clear()


Why = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def why(ended) -> Why:
    """Return a function that runs `trainyard why run` with a kubeconfig, in this process."""

    def run(kubeconfig: Path, **env: str) -> "subprocess.CompletedProcess[str]":
        with pytest.MonkeyPatch.context() as patch:
            for name in PROXIES:
                patch.delenv(name, raising=False)
            for name, value in {"KUBECONFIG": str(kubeconfig), **env}.items():
                patch.setenv(name, value)
            patch.setattr(kube, "_KINDS", dict(kube._KINDS))
            connection._connected.cache_clear()
            done = subprocess.CompletedProcess("why", *ended(why_command.main, "run"))
        connection._connected.cache_clear()
        return done

    return run


@pytest.fixture
def refused(why: Why) -> Callable[..., str]:
    """Return a function that returns what trainyard why says where it cannot read the cluster."""

    def run(kubeconfig: Path, **env: str) -> str:
        done = why(kubeconfig, **env)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert done.stderr.startswith("why: ")
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    return run


def why_in_a_process(kubeconfig: Path) -> "subprocess.CompletedProcess[str]":
    clean = {key: value for key, value in os.environ.items() if key not in PROXIES}
    command = [sys.executable, "-m", "trainyard", "why", "run"]
    env = clean | {"KUBECONFIG": str(kubeconfig)}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_threads_that_ask_first_at_once_share_one_connection(here):
    begun = threading.Barrier(16)

    def ask(_: int) -> connection.Client:
        begun.wait()
        return connection.client()

    with ThreadPoolExecutor(16) as pool:
        assert len({id(client) for client in pool.map(ask, range(16))}) == 1


def test_no_kubeconfig_is_told_with_the_remedy(tmp_path, refused):
    assert f"no kubeconfig {tmp_path}/none: name yours in KUBECONFIG" in refused(tmp_path / "none")


def test_a_file_that_is_no_kubeconfig_is_named(tmp_path, refused):
    (tmp_path / "words").write_text("some words")
    assert f"{tmp_path}/words is not a kubeconfig" in refused(tmp_path / "words")


def test_no_server_is_told_with_its_address(cluster, tmp_path, refused):
    nowhere = f"http://127.0.0.1:{ports.free()}"
    said = refused(cluster.kubeconfig(tmp_path / "kubeconfig", nowhere))
    assert f"no answer from {nowhere}: " in said
    assert "Connection refused; is the cluster up" in said


def test_a_refusal_is_told_with_the_remedy(cluster, tmp_path, refused):
    file = cluster.kubeconfig(tmp_path / "kubeconfig")
    cluster.fault = lambda path, query: (403, 'pods is forbidden: User "u"') if path.endswith("/pods") else None
    assert 'pods is forbidden: User "u": ask for a role that allows it' in refused(file)
    cluster.tokens = {"other"}
    assert "does not know this user (Unauthorized): log in again" in refused(file)


def test_a_python_without_the_client_says_what_to_install(tmp_path):
    command = [sys.executable, "-S", "-m", "trainyard.cluster.why", "run"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "has no package kubernetes" in done.stderr
    assert "hack/bootstrap python in a checkout, else `uv tool install '.'` in a clone" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_a_login_by_a_program_is_used(cluster, tmp_path, why):
    cluster.tokens = {"from-a-program"}
    said = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    said |= {"status": {"token": "from-a-program"}}
    login = {"exec": {"apiVersion": said["apiVersion"], "command": "echo", "args": [json.dumps(said)]}}
    login["exec"]["interactiveMode"] = "Never"
    done = why(cluster.kubeconfig(tmp_path / "kubeconfig", user=login))
    assert "namespace default holds nothing that runs for it" in done.stdout, done


def oidc(url: str) -> dict:
    """Return a login that has expired, and which a server renews."""
    expired = base64.urlsafe_b64encode(b'{"exp": 1}').decode().rstrip("=")
    config = {"client-id": "c", "client-secret": "s", "id-token": f"a.{expired}.b", "refresh-token": "r"}
    return {"auth-provider": {"name": "oidc", "config": config | {"idp-issuer-url": url}}}


def test_a_login_by_oidc_is_renewed(cluster, tmp_path):
    """For that the client needs its class for calls, which is imported then."""
    cluster.fault = lambda path, query: (202, "") if "openid" in path else None  # no answer: the old one is tried
    done = why_in_a_process(cluster.kubeconfig(tmp_path / "kubeconfig", user=oidc(cluster.url)))
    assert "namespace default holds nothing that runs for it" in done.stdout, done
    assert cluster.requests[0][0] == "/.well-known/openid-configuration"


def test_a_login_that_is_not_renewed_is_told(cluster, tmp_path, refused):
    cluster.fault = lambda path, query: (503, "maintenance") if "openid" in path else None
    said = refused(cluster.kubeconfig(tmp_path / "kubeconfig", user=oidc(cluster.url)))
    assert re.search(r"kubeconfig: its login was not renewed: .*503", said), said
    nobody = f"http://127.0.0.1:{ports.free()}"
    said = refused(cluster.kubeconfig(tmp_path / "kubeconfig", user=oidc(nobody)))
    assert "its login was not renewed" in said


def test_a_command_imports_no_classes_of_the_client_and_others_find_it_whole(cluster, tmp_path):
    """They take longer to import than all that a command does."""
    script = """
import sys
from trainyard.cluster import kube, why
kube.items("pods", "default")
assert not [name for name in sys.modules if name.startswith("kubernetes.client")]
import kubernetes
assert kubernetes.client.CoreV1Api and kubernetes.client.models.V1Pod and kubernetes.utils.parse_quantity
"""
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig(tmp_path / "kubeconfig"))}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert cluster.count("pods", watches=False) == 1


def test_proxies_of_kubeconfig_and_environment_are_used(cluster, tmp_path, why, refused):
    far = "http://cluster.invalid:6443"  # only a proxy finds it: this server plays one
    assert why(cluster.kubeconfig(tmp_path / "a", far, **{"proxy-url": cluster.url})).returncode == 1
    file = cluster.kubeconfig(tmp_path / "b", far)
    assert why(file, HTTP_PROXY=cluster.url).returncode == 1
    assert f"{far} through the proxy {cluster.url}/x: " not in refused(
        file, HTTP_PROXY=cluster.url, NO_PROXY=".invalid"
    )


def test_a_pod_on_a_lost_node_is_named_with_the_command_that_frees_it(cluster, tmp_path, why):
    def pod(name: str, **more: str) -> dict:
        meta = {"name": name, "uid": name, "labels": {"app.kubernetes.io/instance": "run"}, **more}
        spec = {"nodeName": f"node-of-{name}", "containers": []}
        ready = [{"type": "Ready", "status": "False"}]
        return {"kind": "Pod", "metadata": meta | {"creationTimestamp": LONG_AGO}, "spec": spec,
                "status": {"phase": "Running", "conditions": ready}}  # fmt: skip

    cluster.put("pods", pod("zombie", deletionTimestamp=LONG_AGO))
    cluster.put("pods", pod("lost"))
    about = {"involvedObject": {"uid": "lost"}, "type": "Warning", "reason": "NodeNotReady"}
    cluster.put(
        "events", {"kind": "Event", "metadata": {"name": "e", "uid": "e"}, "message": "Node is not ready", **about}
    )
    done = why(cluster.kubeconfig(tmp_path / "kubeconfig"))
    assert done.returncode == 1, done
    for name in ("zombie", "lost"):
        command = f"kubectl taint nodes node-of-{name} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        assert f"if the machine is off or gone, and only then: {command}" in done.stdout


def test_what_a_release_has_is_read_in_a_process(cluster, tmp_path):
    labels = {"app.kubernetes.io/instance": "run"}
    meta = {"name": "run-mpijob", "uid": "m", "creationTimestamp": "2026-11-21T11:00:00Z", "labels": labels}
    cluster.put("mpijobs", {"kind": "MPIJob", "metadata": meta, "spec": {"runPolicy": {"suspend": True}}})
    done = why_in_a_process(cluster.kubeconfig(tmp_path / "kubeconfig"))
    assert "mpijob/run-mpijob  Suspended\n    because: values say suspend: true" in done.stdout, done


def test_items_have_their_kind_and_unknown_kinds_have_no_items(here):
    here.put("pods", THING)
    (found,) = kube.items("pods", "default", "x=1")
    assert (found["kind"], found["apiVersion"], found["metadata"]["name"]) == ("Pod", "v1", "a")
    assert kube.items("pods", "default", "x=2") == []
    assert kube.items("pods", "default", "x=2", accept=kube.METADATA) == []
    assert kube.items("trainjobs.trainer.kubeflow.org", "default") == []


def test_a_kind_is_read_in_the_version_that_serves_it(here):
    """As mpijobs are of v2beta1 and pytorchjobs of v1 in one group."""
    kube.items("pytorchjobs.kubeflow.org", "default")
    kube.items("mpijobs.kubeflow.org", "default")
    paths = [path for path, _ in here.requests]
    assert "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs" in paths
    assert "/apis/kubeflow.org/v2beta1/namespaces/default/mpijobs" in paths


def test_a_kind_whose_definition_comes_later_is_found(here, monkeypatch):
    assert kube.items("jobsets.jobset.x-k8s.io", "default") == []
    monkeypatch.setitem(apiserver.GROUPS, "jobset.x-k8s.io", {"v1alpha2": ["jobsets"]})
    here.put("jobsets", THING | {"kind": "JobSet"})
    assert [one["kind"] for one in kube.items("jobsets.jobset.x-k8s.io", "default")] == ["JobSet"]
    monkeypatch.delitem(apiserver.GROUPS, "jobset.x-k8s.io")
    assert kube.items("jobsets.jobset.x-k8s.io", "default") == []


def test_the_log_of_what_has_not_started_is_empty(here):
    assert kube.logs("a", "default", "x", tail=1) == ""
    here.logs["a"] = "one\ntwo\n"
    assert kube.logs("a", "default", "x", tail=1) == "two\n"


def test_a_log_of_a_node_that_is_cut_off_is_not_waited_for_as_long_as_the_api_server(here, monkeypatch):
    monkeypatch.setattr(kube, "KUBELET", 0.2)
    asked_again = threading.Event()
    here.fault = lambda path, query: asked_again.wait(60) and None if path.endswith("/log") else None
    with pytest.raises(UnreachableError):  # within the test's minute
        kube.logs("a", "default", "x")
    asked_again.set()


def test_a_log_that_the_kubelet_does_not_give_is_not_an_empty_one(here):
    here.logs["a"] = "one\n"
    here.fault = lambda path, query: (500, "net/http: TLS handshake timeout") if path.endswith("/log") else None
    with pytest.raises(UnreachableError, match="TLS handshake timeout"):
        kube.logs("a", "default", "x")


def test_what_tests_watch_continues_after_a_break_and_is_listed_again_after_a_refusal(here):
    seen: list[str] = []

    def put(state: str) -> None:
        here.put("pods", THING | {"state": state})

    def shows(*states: str) -> None:
        patience.wait(lambda: f"{states}; it saw {seen}", lambda: seen == [*states], patience.still)

    put("made")
    end = watch(lambda one: seen.append(one["state"]), "pods", "default")
    put("ready")
    shows("made", "ready")
    here.cut()
    put("ended")
    shows("made", "ready", "ended")
    refused: list[str] = []

    def refuse(path: str, _: dict[str, str]) -> tuple[int, str]:
        refused.append(path)
        return 503, "busy"

    here.fault = refuse
    here.cut()
    patience.wait("a refusal", lambda: refused, patience.still)
    put("lost")
    put("there")
    here.fault = lambda path, query: None
    shows("made", "ready", "ended", "there")
    here.drop("pods", "a")
    shows("made", "ready", "ended", "there", "there")
    end()


def test_a_watch_that_breaks_later_names_the_server_that_was_asked_and_connects_to_no_other(here, monkeypatch):
    """As that of a command which has ended: the next one of the process may be for another cluster."""
    here.put("pods", THING)
    seen = kube.changes("pods", "default", "0")
    assert next(seen)[0] == "ADDED"
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    connection._connected.cache_clear()
    here.cut()
    with pytest.raises(UnreachableError, match=f"no answer from {here.url}: "):
        list(seen)
    assert connection._connected.cache_info().currsize == 0


def test_one_object_is_awaited(here):
    assert kube.until("pods", "default", "a", lambda pod: pod is None, 30) == (True, None)
    here.put("pods", THING)
    fits, state = kube.until("pods", "default", "a", lambda pod: pod is None, 1)
    assert (fits, state and state["metadata"]["name"]) == (False, "a")


def test_a_pod_is_ready_or_never_will_be():
    assert not fetch.ready(None)
    assert not fetch.ready({"status": {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]}})
    assert fetch.ready({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
    assert fetch.ready({"status": {"phase": "Failed"}})


def test_kubectl_that_runs_in_a_pod_is_looked_for_first(here, tmp_path, monkeypatch):
    """A fetch that could not read fails before it creates a pod."""
    monkeypatch.setattr(connection, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KubeError, match="kubectl is not on PATH: install it"):
        fetch.fetch("default", claim_source.ClaimSource("c", "", "i", {}), "runs", tmp_path)
    assert here.requests == []
