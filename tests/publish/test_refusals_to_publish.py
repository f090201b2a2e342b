"""What keeps a version from being published: one line with the remedy, exit code 2, before anything is built."""

import os
from pathlib import Path

import pytest

from tests import ports
from tests.fakes.registry import PASSWORD, Registry

from .conftest import commit, make_tree, publish

pytestmark = pytest.mark.takes(30)


def refused(done) -> str:
    """Return the one line of a refusal; nothing was built before it."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("publish: ")
    assert PASSWORD not in line
    return line


@pytest.mark.root
def test_a_wrong_password(tree: Path, images: Path, registry: Registry):
    said = refused(publish(tree, registry.host, images, env=registry.env | {"PASSWORD": "wrong-battery"}))
    assert f"{registry.host} refuses the login: set USERNAME and PASSWORD" in said
    assert "wrong-battery" not in said


@pytest.mark.root
def test_no_password(tree: Path, images: Path, registry: Registry, tmp_path: Path):
    nobody = {key: value for key, value in registry.env.items() if key not in ("USERNAME", "PASSWORD")}
    assert "refuses the login" in refused(publish(tree, registry.host, images, env=nobody | {"HOME": str(tmp_path)}))


def test_a_password_without_a_name(tree: Path, images: Path):
    env = os.environ | {"USERNAME": "", "PASSWORD": PASSWORD}
    assert "set both" in refused(publish(tree, "r.example.com", images, env=env))


@pytest.mark.root
def test_a_registry_that_is_down(tree: Path, images: Path, registry: Registry):
    host = f"127.0.0.1:{ports.free()}"
    assert f"{host} does not answer" in refused(publish(tree, host, images, env=registry.env))


@pytest.mark.root
def test_a_certificate_that_nobody_trusts(tree: Path, images: Path, registry: Registry, tmp_path: Path):
    (tmp_path / "none.crt").write_bytes(b"")
    env = registry.env | {"SSL_CERT_FILE": str(tmp_path / "none.crt")}
    said = refused(publish(tree, registry.host, images, env=env))
    assert "SSL_CERT_FILE names a file with the certificates to trust" in said


@pytest.mark.parametrize("name", ["", "https://r.example.com", "R.example.com/Team", "r.example.com/team/"])
def test_a_registry_that_is_no_host_and_folder(tree: Path, images: Path, name: str):
    assert "write a host and folder such as registry.example.com/team" in refused(publish(tree, name, images))


def test_another_version_than_the_trees(tree: Path, images: Path):
    said = refused(publish(tree, "r.example.com", images, version="7.0.0"))
    assert "VERSION is 7.0.0, and pyproject.toml says 0.1.0" in said


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A tree of the test's own."""
    return make_tree(tmp_path / "trainyard")


def test_a_chart_of_another_version(own: Path, images: Path):
    part = own / "charts" / "trainyard" / "charts" / "mpijob" / "Chart.yaml"
    part.write_text(part.read_text().replace('appVersion: "0.1.0"', 'appVersion: "0.0.9"'))
    commit(own, "A mistake")
    assert "charts/trainyard/charts/mpijob/Chart.yaml says 0.0.9" in refused(publish(own, "r.example.com", images))


def test_a_change_that_no_commit_has(own: Path, images: Path):
    (own / "docs" / "new.md").write_text("")
    assert "changes that no commit has, such as docs/new.md" in refused(publish(own, "r.example.com", images))


def test_a_version_that_the_changelog_has_not_closed(own: Path, images: Path):
    changes = own / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace("## [Unreleased]\n", "## [Unreleased]\n\n### Added\n- Something.\n"))
    commit(own, "Something")
    assert "has changes under [Unreleased]: move them to [0.1.0]" in refused(publish(own, "r.example.com", images))


@pytest.mark.root
def test_a_dry_run_says_what_would_be_pushed_and_needs_no_registry(own: Path, images: Path):
    done = publish(own, "r.example.com/team", images, "--dry-run")
    assert done.returncode == 0, done.stderr
    for name in ("trainyard-pytorch", "trainyard-horovod", "trainyard-filebrowser", "python/trainyard"):
        assert f"r.example.com/team/{name}:0.1.0 sha256:" in done.stdout
    assert "oci://r.example.com/team/charts/trainyard:0.1.0" in done.stdout
    assert "nothing was pushed" in done.stdout
