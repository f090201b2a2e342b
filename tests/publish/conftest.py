"""What is published in tests: a copy of this tree as a git repository, and images of a few bytes."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hack.publish import layout
from tests import checkout, patience
from tests.fakes import registry as registries

ROOT = Path(__file__).resolve().parents[2]
GIT = ("git", "-c", "user.name=tests", "-c", "user.email=tests@example.com")
LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"


def commit(tree: Path, message: str) -> None:
    """Commit everything in a tree."""
    for words in (("add", "-A"), ("commit", "-q", "-m", message)):
        subprocess.run([*GIT, "-C", tree, *words], check=True, capture_output=True)


def make_tree(to: Path) -> Path:
    """Copy this tree as one whose version is released today: a git repository with one commit."""
    checkout.copy(to)
    for link in ROOT.glob("charts/trainyard/charts/*/charts/common"):  # links to folders, which the copy leaves out
        place = to / link.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(link.readlink())
    (to / "build").mkdir()
    (to / "build" / "bin").symlink_to(ROOT / "build" / "bin")
    changes = to / "CHANGELOG.md"
    text = re.sub(r"## \[Unreleased\].*?(?=^## \[)", "## [Unreleased]\n\n", changes.read_text(), flags=re.S | re.M)
    changes.write_text(re.sub(r"^(## \[[\d.]+\]) - unreleased", r"\1 - 2026-01-02", text, flags=re.M))
    subprocess.run(["git", "-C", to, "init", "-q"], check=True)
    commit(to, "A version")
    return to


def make_images(folder: Path) -> Path:
    """Write an OCI layout with an image of one small layer for each name that the chart has."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("etc/empty"))
    layer = content.getvalue()
    for name in ("trainyard-filebrowser", "trainyard-horovod", "trainyard-pytorch"):
        made = {"architecture": "amd64", "os": "linux", "config": {"Labels": {"name": name}}}
        made |= {"rootfs": {"type": "layers", "diff_ids": [layout.digest(layer)]}}
        parts = [(json.dumps(made).encode(), CONFIG), (layer, LAYER)]
        stored = [{"mediaType": kind, "digest": put(folder, blob), "size": len(blob)} for blob, kind in parts]
        manifest = {"schemaVersion": 2, "mediaType": layout.MANIFEST, "config": stored[0], "layers": stored[1:]}
        text = json.dumps(manifest).encode()
        entry = {"mediaType": layout.MANIFEST, "digest": put(folder, text), "size": len(text)}
        entry["annotations"] = {layout.NAME: f"localhost/{name}:0.1.0-abc"}
        index = folder / "index.json"
        listed = json.loads(index.read_text())["manifests"] if index.exists() else []
        index.write_text(json.dumps({"schemaVersion": 2, "manifests": [*listed, entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def put(folder: Path, content: bytes) -> str:
    """Store a blob of a layout; return its digest."""
    path = folder / "blobs" / "sha256" / hashlib.sha256(content).hexdigest()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return f"sha256:{path.name}"


def publish(
    tree: Path, registry: str, images: Path, *more: str, env: Mapping[str, str] | None = None, version: str = ""
):
    """Publish a tree as `make publish` does; returns the ended process, whose output has both streams."""
    stated = re.search(r'^version = "(.+)"', (tree / "pyproject.toml").read_text(), re.M)
    assert stated
    command = [sys.executable, "-m", "hack.publish", "--registry", registry, "--version", version or stated[1]]
    command += ["--images", str(images), *more]
    return patience.run(command, cwd=tree, env=dict(env or os.environ))


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An OCI layout with the chart's images, of a few bytes each."""
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of this tree, committed, whose version has a date."""
    folder = tmp_path_factory.mktemp("tree")
    yield make_tree(folder / "trainyard")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[registries.Registry]:
    """A registry with TLS and a password."""
    with registries.running(tmp_path_factory.mktemp("registry")) as one:
        yield one
