import re
import threading

import pytest

from tests import patience
from tests.fakes import nginx
from tests.unit.prepare.make_archives import HASTE, config, contents, imagenet, pictures, write_tar
from trainyard.core.exits import UserError
from trainyard.prepare.build import Options, build
from trainyard.prepare.sources.base import Traffic
from trainyard.prepare.sources.http import HttpSource
from trainyard.prepare.sources.retry import Patience


@pytest.fixture(scope="module")
def server(archive, tmp_path_factory):
    home = tmp_path_factory.mktemp("nginx")
    write_tar(archive.parent / "archive.tar", imagenet(60, 9))
    with nginx.running(archive.parent, home) as running:
        yield running


def attempt(url, out, **settings):
    return build(config(url, out, **settings), Options(patience=HASTE))


def test_a_zip_is_read_by_ranges(server, prepared, tmp_path):
    attempt(f"{server.url}/archive.zip", tmp_path / "little")
    assert contents(tmp_path / "little", manifest=False) == contents(prepared, manifest=False)
    statuses = set(re.findall(r'GET /archive\.zip HTTP/1\.1" (\d{3}) ', server.log()))
    assert statuses == {"206"}


def test_a_tar_is_read_as_a_stream_of_ranges(server, tmp_path):
    attempt(f"{server.url}/archive.tar", tmp_path / "little")
    assert len(pictures(tmp_path / "little", "train")) == 60


def test_a_redirect_is_followed_and_its_signature_not_shown(server, prepared, tmp_path, capfd):
    attempt(f"{server.url}/moved/archive.zip", tmp_path / "little")
    assert contents(tmp_path / "little", manifest=False) == contents(prepared, manifest=False)
    assert "X-Signature=secret" in server.log()
    assert "secret" not in "".join(capfd.readouterr())


def test_throttling_is_tolerated(server, prepared, tmp_path):
    patience = Patience(tries=200, first_pause=0.02, longest_pause=0.1)
    build(config(f"{server.url}/busy/archive.zip", tmp_path / "little", workers=8), Options(patience=patience))
    assert contents(tmp_path / "little", manifest=False) == contents(prepared, manifest=False)
    assert '" 429 ' in server.log()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("whole/archive.zip", "does not answer range requests.*nginx.*'path'"),
        (
            "closed/archive.zip",
            "answered 403 Forbidden; check that its signature has not expired, or give user name and password",
        ),
        ("none.zip", "answered 404"),
    ],
)
def test_refusals_are_explained(server, tmp_path, path, words):
    with pytest.raises(UserError, match=words):
        attempt(f"{server.url}/{path}", tmp_path / "little")


def test_a_server_that_goes_and_comes_back_is_waited_for(server, archive):
    traffic = Traffic()
    source = HttpSource(f"{server.url}/archive.zip", traffic)
    assert bytes(source.read_range(10, 5)) == archive.read_bytes()[10:15]
    server.stop()

    def come_back():
        patience.wait("its absence is noticed", lambda: traffic.retries, patience.still)
        server.start()

    back = threading.Thread(target=come_back)
    back.start()
    assert bytes(source.read_range(1000, 500_000)) == archive.read_bytes()[1000:501_000]
    back.join()
    assert traffic.retries > 0
    assert traffic.last_trouble
