"""A version is published to a real registry with TLS and a password, comes back equal, and is never overwritten."""

import io
import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
import yaml

from hack.publish import layout
from tests.charts import helm
from tests.fakes.registry import PASSWORD, USER, Registry

from .conftest import commit, publish

pytestmark = [pytest.mark.root, pytest.mark.takes(90)]
VALUES = {
    "global": {"training": {"nodes": 2, "processesPerNode": 2, "recipe": "demo"}},
    "dataset": {"source": {"url": "https://data.example.com/pictures.zip"}},
    "mpijob": {"enabled": True},
    "pytorchjob": {"enabled": True},
    "evaluate": {"enabled": True, "run": "first"},
    "filebrowser": {"enabled": True, "auth": {"password": "not-a-password"}},
    "tests": {"enabled": True},
}


@pytest.fixture(scope="module")
def recorder(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], Path]:
    """Programs in front of skopeo and Helm that note their arguments and go on as these; PATH, and the notes."""
    folder = tmp_path_factory.mktemp("recorder")
    bins = tree / "build" / "bin"
    bins.unlink()
    bins.mkdir()
    skopeo = subprocess.run(["which", "skopeo"], check=True, capture_output=True, text=True).stdout.strip()
    for path, real in ((folder / "skopeo", skopeo), (bins / "helm3", (helm.BIN / "helm3").resolve())):
        path.write_text(f'#!/bin/sh\necho "{path.name} $*" >> {folder}/arguments\nexec {real} "$@"\n')
        path.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}, folder / "arguments"


@pytest.fixture(scope="module")
def published(tree: Path, images: Path, registry: Registry, recorder: tuple[dict[str, str], Path]):
    """What was said, and build/publish of the tree, after a version was published."""
    done = publish(tree, f"{registry.host}/team", images, env=registry.env | recorder[0])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr, tree / "build" / "publish"


def release(folder: Path) -> dict[str, str]:
    """Return the digests of release.json, by the names below the registry's folder."""
    found = json.loads((folder / "release.json").read_text())["artifacts"]
    return dict(one["reference"].partition("/team/")[2].split("@") for one in found)


def test_everything_that_was_made_is_in_the_registry_byte_for_byte(registry, published):
    _, folder = published
    digests = release(folder)
    assert set(digests) == {
        "charts/trainyard", "python/trainyard", "trainyard-filebrowser", "trainyard-horovod", "trainyard-pytorch",
    }  # fmt: skip
    manifests = {}
    for name, digest in digests.items():
        for which in (digest, "0.1.0"):
            answer = registry.get(f"team/{name}/manifests/{which}")
            assert answer.status_code == 200, (name, which, answer.text)
            assert layout.digest(answer.content) == digest
        manifests[name] = answer.json()
    files = [path for path in (folder / "packages").iterdir() if path.suffix in (".whl", ".gz")]
    packages = {path.name: path.read_bytes() for path in files}
    assert len(packages) == 2
    (wheel,) = (data for name, data in packages.items() if name.endswith(".whl"))
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        assert archive.read("trainyard/registry").decode() == f"{registry.host}/team\n"
    for layer in manifests["python/trainyard"]["layers"]:
        stored = registry.get(f"team/python/trainyard/blobs/{layer['digest']}").content
        assert packages.pop(layer["annotations"]["org.opencontainers.image.title"]) == stored
    (packed,) = (folder / "chart").glob("*.tgz")
    (layer,) = manifests["charts/trainyard"]["layers"]
    assert layer["digest"] == layout.digest(packed.read_bytes())


@pytest.mark.parametrize("program", helm.HELMS)
def test_the_published_chart_needs_no_word_about_images(program, registry, published, tmp_path):
    """A values file that says nothing of images; every image is named by the digest that was pushed."""
    logins = tmp_path / "logins.json"
    login = ("registry", "login", registry.host, "-u", USER, "--password-stdin", "--registry-config", logins)
    helm.run(program, *login, stdin=PASSWORD, SSL_CERT_FILE=registry.env["SSL_CERT_FILE"])
    chart = f"oci://{registry.host}/team/charts/trainyard"
    words = ("template", "run", chart, "--version", "0.1.0", "--registry-config", logins, "-f", "-")
    text = helm.run(program, *words, stdin=yaml.safe_dump(VALUES), SSL_CERT_FILE=registry.env["SSL_CERT_FILE"])
    digests = release(published[1])
    images = [(name, which) for name, which in digests.items() if name.startswith("trainyard-")]
    wanted = {f"{registry.host}/team/{name}@{which}" for name, which in images}
    found = {line.split("image:")[1].strip().strip('"') for line in text.splitlines() if " image: " in line}
    assert found == wanted
    helm.validate(text)


def test_notes_do_not_call_the_published_digests_a_users(registry, published):
    (packed,) = (published[1] / "chart").glob("*.tgz")
    alone = VALUES | {"mpijob": {"enabled": False}}
    said = helm.run("helm4", "install", "run", packed, "--dry-run=client", "-f", "-", stdin=yaml.safe_dump(alone))
    assert "NOTES:" in said
    assert "image.digest" not in said.partition("NOTES:")[2]
    own = alone | {"mpijob": {"enabled": False, "image": {"digest": f"sha256:{'0' * 64}"}}}
    said = helm.run("helm4", "install", "run", packed, "--dry-run=client", "-f", "-", stdin=yaml.safe_dump(own))
    assert "mpijob.image.digest: mpijob does not train" in said


def test_artifact_hub_finds_images_changes_license_and_icon(registry, published):
    (packed,) = (published[1] / "chart").glob("*.tgz")
    described = yaml.safe_load(helm.run("helm3", "show", "chart", packed))
    notes = described["annotations"]
    images = yaml.safe_load(notes["artifacthub.io/images"])
    digests = release(published[1])
    assert {(one["name"], one["image"].partition("@")[2]) for one in images} == {
        (name, which) for name, which in digests.items() if name.startswith("trainyard-")
    }
    changes = yaml.safe_load(notes["artifacthub.io/changes"])
    assert {one["kind"] for one in changes} == {"added"}
    assert notes["artifacthub.io/license"] == "Apache-2.0"
    assert notes["artifacthub.io/prerelease"] == "false"
    assert described["icon"].startswith("data:image/svg+xml;base64,")


def test_the_password_is_in_no_argument_and_in_no_log(registry, published, recorder):
    said, folder = published
    arguments = recorder[1].read_text()
    assert "skopeo copy" in arguments
    assert "helm3 push" in arguments
    logs = [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]
    for text in (said, arguments, registry.log.read_text(), *logs):
        assert PASSWORD not in text


def test_publishing_the_same_again_pushes_nothing(tree, images, registry, published, recorder):
    recorder[1].write_text("")
    done = publish(tree, f"{registry.host}/team", images, env=registry.env | recorder[0])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pushed" not in done.stdout
    assert "compared" in done.stdout
    assert "helm3 push" not in recorder[1].read_text()


def test_another_content_under_a_published_version_is_refused(tree, images, registry, published, recorder):
    before = {name: registry.get(f"team/{name}/manifests/0.1.0").content for name in release(published[1])}
    values = tree / "charts" / "trainyard" / "values.yaml"
    values.write_text(f"{values.read_text()}# one more comment\n")
    commit(tree, "Another chart")
    done = publish(tree, f"{registry.host}/team", images, env=registry.env | recorder[0])
    assert done.returncode == 2
    assert "0.1.0 is published already, with other content" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert {name: registry.get(f"team/{name}/manifests/0.1.0").content for name in before} == before
