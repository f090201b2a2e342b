"""The dataset's pod in a company's network: a private authority, a proxy and a server with passwords, all of them real.

The pod's command runs here, with the environment, settings and files that the chart gives it.
"""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import patience
from tests.fakes import files, guarded
from tests.unit.prepare import make_archives

from . import helm
from .pods import LocalPod

pytestmark = pytest.mark.takes(20)
PASSWORD = "correct-horse"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small archive."""
    members = make_archives.imagenet(train=12, val=6)
    return make_archives.write_zip(tmp_path_factory.mktemp("archive") / "pets.zip", members)


@pytest.fixture(scope="module")
def secure(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The archive's address on an HTTPS server, and the certificate of its authority."""
    root, certificate = guarded.authority(tmp_path_factory.mktemp("authority"))
    with guarded.https(archive.parent, certificate) as server:
        yield f"{server.url}/pets.zip".replace("http:", "https:"), root


def pod(
    folder: Path, url: str, *more: helm.Values, secrets: dict | None = None, configs: dict | None = None
) -> LocalPod:
    """The dataset's pod of a release, here."""
    settings = {"workers": 1, "shard_mb": 1}
    values = helm.merged(
        helm.everything(),
        {"dataset": {"source": {"url": url}, "settings": settings, "activeDeadlineSeconds": 3600}},
        *more,
    )
    objects = helm.documents(helm.template(values))
    (job,) = [one for one in objects if one["kind"] == "Job" and "-dataset-" in one["metadata"]["name"]]
    return LocalPod(folder, job["spec"]["template"]["spec"], objects, secrets or {}, configs or {})


def said_at_once(one: LocalPod) -> str:
    """What the pod prints when it must not retry."""
    code, said = one.run("--retry", "0")
    assert code == 2, said
    return said


def test_a_private_authority_is_trusted_by_one_key(secure: tuple[str, Path], tmp_path: Path):
    url, root = secure
    said = said_at_once(pod(tmp_path / "without", url))
    assert "certificate" in said
    assert "global.caBundle" in said
    bundle = helm.at("global.caBundle", {"configMap": "company", "key": "root.pem"})
    one = pod(tmp_path / "with", url, bundle, configs={"company": {"root.pem": root.read_text()}})
    code, said = one.run("--retry", "0")
    assert code == 0, said
    assert "prepared" in said
    assert one.mounted("/data/imagenet/manifest.json").exists()


def test_a_proxy_with_a_password_is_passed_and_the_password_never_shown(secure: tuple[str, Path], tmp_path: Path):
    url, root = secure
    bundle = helm.at("global.caBundle.configMap", "company")
    configs = {"company": {"ca-bundle.crt": root.read_text()}}
    with guarded.proxy("ada", PASSWORD) as (address, seen):
        plain = helm.at("dataset.env", [{"name": "HTTPS_PROXY", "value": f"http://{address}"}])
        said = said_at_once(pod(tmp_path / "without", url, bundle, plain, configs=configs))
        assert "the proxy wants a user name and password" in said
        assert "dataset.envFrom" in said
        assert seen
        seen.clear()
        named = helm.at("dataset.envFrom", [{"secretRef": {"name": "proxy"}}])
        secrets = {"proxy": {"HTTPS_PROXY": f"http://ada:{PASSWORD}@{address}"}}
        one = pod(tmp_path / "with", url, bundle, named, secrets=secrets, configs=configs)
        code, said = one.run("--retry", "0")
    assert code == 0, said
    assert {line.split()[0] for line in seen} == {"CONNECT"}
    assert PASSWORD not in said
    assert PASSWORD not in str(one.spec)


def test_a_proxy_serves_plain_http_too(archive: Path, tmp_path: Path):
    with guarded.proxy("ada", PASSWORD) as (address, seen), files.running(archive.parent) as server:
        named = helm.at("dataset.envFrom", [{"secretRef": {"name": "proxy"}}])
        url = f"{server.url}/pets.zip"
        wrong = {"proxy": {"HTTP_PROXY": f"http://ada:wrong@{address}"}}
        said = said_at_once(pod(tmp_path / "wrong", url, named, secrets=wrong))
        assert "the proxy wants a user name and password" in said
        right = {"proxy": {"HTTP_PROXY": f"http://ada:{PASSWORD}@{address}"}}
        code, said = pod(tmp_path / "right", url, named, secrets=right).run("--retry", "0")
    assert code == 0, said
    assert any(line.startswith("GET http://") for line in seen)


def test_a_web_server_with_a_login_reads_it_from_a_secret(archive: Path, tmp_path: Path):
    wanted = guarded.login("ada", PASSWORD)
    with files.running(archive.parent, guarded.PasswordHandler, wanted=wanted) as server:
        url = f"{server.url}/pets.zip"
        said = said_at_once(pod(tmp_path / "without", url))
        assert "401" in said
        assert "global.secrets.http" in said
        named = helm.at("global.secrets.http.existingSecret", "files")
        secrets = {"files": {"netrc": f"machine 127.0.0.1 login ada password {PASSWORD}\n"}}
        one = pod(tmp_path / "with", url, named, secrets=secrets)
        code, said = one.run("--retry", "0")
    assert code == 0, said
    assert PASSWORD not in said
    assert PASSWORD not in str(one.spec)


def test_what_is_mended_outside_of_the_values_is_found_without_an_upgrade(archive: Path, tmp_path: Path):
    """An archive that does not exist yet: the pod says what it waits for, and prepares the archive once it exists."""
    served = tmp_path / "served"
    served.mkdir()
    with files.running(served) as server:
        one = pod(tmp_path / "pod", f"{server.url}/pets.zip")
        assert one.container["command"][-2:] == ["--retry", "3600"]
        with one.start() as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert first.startswith("prepare: waiting: ")
            assert "404" in first
            assert "retried in 10 s, for at most 60 min" in first
            (served / "pets.zip").write_bytes(archive.read_bytes())
            said, _ = patience.communicate(process)
    assert process.returncode == 0, said
    assert one.mounted("/data/imagenet/manifest.json").exists()


def test_a_waiting_preparation_ends_when_it_is_told_to(tmp_path: Path):
    with files.running(tmp_path) as server:
        one, begun = pod(tmp_path / "pod", f"{server.url}/pets.zip"), time.monotonic()
        with one.start() as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("prepare: waiting: ")
            asked = len(server.requests)
            process.send_signal(signal.SIGTERM)
            waited = time.monotonic() - begun
            patience.communicate(process)
    assert process.returncode == 143
    assert len(server.requests) <= asked * (1 + waited // 10), "it has tried again"


def test_a_wrong_setting_is_not_retried(archive: Path, tmp_path: Path):
    """The archive has ImageNet's layout, and the values name another: a retry would fail the same way."""
    with files.running(archive.parent) as server:
        other = helm.at("dataset.settings.layout", "imagefolder")
        code, said = pod(tmp_path / "pod", f"{server.url}/pets.zip", other).run()
    assert code == 2
    assert "waiting" not in said
