"""An API server on loopback, and this process as its client."""

from collections.abc import Callable, Iterator

import pytest

from tests.fakes import apiserver
from tests.fakes.apiserver import Cluster
from trainyard.cluster import connection, kube


@pytest.fixture
def here(tmp_path, monkeypatch) -> Iterator[Cluster]:
    """The server; commands of this process use it."""
    with apiserver.running() as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "kubeconfig")))
        monkeypatch.setattr(kube, "_KINDS", dict(kube._KINDS))
        connection._connected.cache_clear()
        yield cluster
        connection._connected.cache_clear()


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
