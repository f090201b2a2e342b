"""API servers on loopback, and this process as their client; and doctor on the sound cluster."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tests.fakes import apiserver, objects
from tests.fakes.apiserver import Cluster
from tests.fakes.objects import Objects
from tests.unit.cluster.clusters import NAMESPACE, VALUES, sound
from trainyard.cluster import connection, doctor, kube, survey

API = {
    "events": ("v1", "Event"),
    "configmaps": ("v1", "ConfigMap"),
    "secrets": ("v1", "Secret"),
    "namespaces": ("v1", "Namespace"),
}
NAMES = {
    "endpointslices": "EndpointSlice",
    "networkpolicies": "NetworkPolicy",
    "pytorchjobs": "PyTorchJob",
    "jobs": "Job",
}
KUBEFLOW = {"pytorchjobs": ("kubeflow.org/v1", "PyTorchJob"), "mpijobs": ("kubeflow.org/v2beta1", "MPIJob"),
        "jobs": ("batch/v1", "Job"),
            "customresourcedefinitions": ("apiextensions.k8s.io/v1", "CustomResourceDefinition")}  # fmt: skip
KUEUE = {kind: ("kueue.x-k8s.io/v1beta2", kind) for kind in survey.KUEUE}


def kinds() -> dict[str, tuple[str, str]]:
    """Return the kinds that the server knows: by plural, version and kind."""
    places = survey.EVERYWHERE | survey.OWN
    known = {one: (place.path.removeprefix("/apis/").removeprefix("/api/"), one) for one, place in places.items()}
    return known | API | KUBEFLOW | KUEUE


@contextmanager
def client_of(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let commands of this process use a server, of whose kinds they know nothing yet."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setattr(kube, "_KINDS", dict(kube._KINDS))
    connection._connected.cache_clear()
    yield
    connection._connected.cache_clear()


@pytest.fixture
def here(tmp_path, monkeypatch) -> Iterator[Cluster]:
    """The server; commands of this process use it."""
    with apiserver.running() as cluster, client_of(cluster.kubeconfig(tmp_path / "kubeconfig"), monkeypatch):
        yield cluster


@pytest.fixture
def ended(capsys) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command's main function: exit code, output and errors."""

    def run(main: Callable[[list[str]], int], *arguments: str) -> tuple[int, str, str]:
        try:
            code = main(list(arguments))
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Iterator[Objects]:
    """The sound cluster, by HTTP, with clocks that agree; this process is its client."""
    seen = sound()
    for lease in seen.of("leases"):
        del lease["metadata"]["managedFields"]

    def renew(path: str) -> None:
        """Do what kubelets and controllers do every few seconds, however long a test takes."""
        if path.endswith("/leases"):
            for lease in seen.of("leases"):
                lease["spec"]["renewTime"] = datetime.now(UTC).isoformat()

    held = seen.objects | {"namespaces": seen.of("namespace")}
    held["storageclasses"][0]["volumeBindingMode"] = "WaitForFirstConsumer"
    with objects.running(held, kinds()) as found:
        found.seen = renew
        found.binds = {("nfs", "ReadWriteMany"), ("", "ReadWriteMany")}
        with client_of(found.kubeconfig(tmp_path / "kubeconfig"), monkeypatch):
            yield found


@pytest.fixture
def run(tmp_path, capsys) -> Callable[..., tuple[int, str]]:
    """Return a function: run doctor for the run's values and return its exit code and output."""
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(VALUES))

    def do(*arguments: str, values: bool = True) -> tuple[int, str]:
        code = doctor.main(["-n", NAMESPACE, *(["-f", str(file)] if values else []), *arguments])
        out, err = capsys.readouterr()
        return code, out + err

    return do
