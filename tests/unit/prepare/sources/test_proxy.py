"""A company's proxy between the preparation and its source: it is used, and what it cuts is continued."""

from pathlib import Path

import pytest

from tests.fakes import files, guarded
from tests.unit.prepare.make_archives import HASTE, config, contents
from trainyard.core.exits import ExitError
from trainyard.prepare.build import Options, build
from trainyard.prepare.sources.base import Traffic
from trainyard.prepare.sources.http import HttpSource

VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
CUT = 120_000  # bytes of an answer: in the midst of it


@pytest.fixture
def through(monkeypatch: pytest.MonkeyPatch):
    """Name a proxy in the environment, by names in capitals or not."""
    for name in (*VARIABLES, *map(str.upper, VARIABLES)):
        monkeypatch.delenv(name, raising=False)
    return lambda name, address: monkeypatch.setenv(name, f"http://ada:secret@{address}")


@pytest.mark.parametrize("capitals", [False, True])
def test_a_proxy_that_cuts_answers_is_asked_for_the_rest(  # noqa: PLR0917
    archive, prepared, tmp_path, capsys, through, capitals
):
    with files.running(archive.parent) as server, guarded.proxy("ada", "secret", lambda n: CUT) as (address, seen):
        through("HTTP_PROXY" if capitals else "http_proxy", address)
        build(config(f"{server.url}/archive.zip", tmp_path / "little"), Options(patience=HASTE))
        assert len(seen) == len(server.requests), "all went through the proxy"
        assert all(one.startswith(f"GET {server.url}/") for one in seen)
        assert len(seen) > archive.stat().st_size / CUT
    assert contents(tmp_path / "little", manifest=False) == contents(prepared, manifest=False)
    assert "secret" not in capsys.readouterr().err


@pytest.mark.parametrize("cut", [CUT, 40], ids=["amid an answer", "amid the handshake"])
def test_a_proxy_that_cuts_tunnels_is_used_again(  # noqa: PLR0917
    archive, prepared, tmp_path, capsys, through, monkeypatch, cut
):
    root, certificate = guarded.authority(tmp_path / "ca")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(root))
    cuts = lambda number: cut if number % 2 else None  # noqa: E731
    with guarded.https(archive.parent, certificate) as server, guarded.proxy("ada", "secret", cuts) as (address, seen):
        through("https_proxy", address)
        url = server.url.replace("http:", "https:")
        build(config(f"{url}/archive.zip", tmp_path / "little", workers=1), Options(patience=HASTE))
        assert len(seen) > 1
        assert all(one.startswith("CONNECT 127.0.0.1:") for one in seen)
    assert contents(tmp_path / "little", manifest=False) == contents(prepared, manifest=False)
    assert " 0 retries" not in capsys.readouterr().err


def test_what_a_proxy_cuts_is_not_read_twice(archive, through):
    with files.running(archive.parent) as server, guarded.proxy("ada", "secret", lambda n: CUT) as (address, _):
        through("http_proxy", address)
        source = HttpSource(f"{server.url}/archive.zip", Traffic(), patience=HASTE)
        server.requests.clear()
        assert bytes(source.read_range(0, 3 * CUT)) == archive.read_bytes()[: 3 * CUT]
        starts = [int(asked.removeprefix("bytes=").split("-")[0]) for _, asked in server.requests]
        assert starts == [0, CUT, 2 * CUT]


def test_a_proxy_that_cuts_everything_ends_it(archive, tmp_path: Path, through):
    with files.running(archive.parent) as server, guarded.proxy("ada", "secret", lambda n: 0) as (address, seen):
        through("http_proxy", address)
        with pytest.raises(ExitError, match=r"archive.zip could not be read: .*, 4 times in a row; check the network"):
            build(config(f"{server.url}/archive.zip", tmp_path / "little"), Options(patience=HASTE))
        assert len(seen) == HASTE.tries
