"""What the images are made from: pins, tag, Dockerfiles."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILES = [ROOT / "images" / name / "Dockerfile" for name in ("pytorch", "horovod")]
FILEBROWSER = ROOT / "images" / "filebrowser" / "Dockerfile"


def test_pins_are_those_of_the_lock_file() -> None:
    subprocess.check_call([str(ROOT / "hack/images/requirements"), "--check"])


def copy_sources(folder: Path) -> Path:
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("src", "trainers", "images", "hack/images", "hack/lib"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    for name in ("pyproject.toml", "LICENSE", ".dockerignore"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def tag(folder: Path) -> str:
    return subprocess.check_output([str(folder / "hack/images/tag")], text=True).strip()


def test_tag_follows_content_and_nothing_else(tmp_path: Path) -> None:
    folder = copy_sources(tmp_path / "copy")
    first = tag(folder)
    assert re.fullmatch(r"\d+\.\d+\.\d+-[0-9a-f]{12}", first)
    (folder / "trainers" / "__pycache__").mkdir()
    (folder / "trainers" / "__pycache__" / "x.pyc").write_text("x")
    (folder / "images" / "README.md").write_text("other words")
    assert tag(folder) == first
    (folder / "trainers" / "__init__.py").write_text("changed = 1\n")
    assert tag(folder) != first


@pytest.mark.parametrize("path", [*DOCKERFILES, FILEBROWSER], ids=lambda path: path.parent.name)
def test_dockerfile_is_plain(path: Path) -> None:
    text = path.read_text()
    base = "docker.io/library/debian:bookworm-" if path == FILEBROWSER else "nvcr.io/nvidia/pytorch:"
    assert re.search(rf"(?m)^ARG BASE_IMAGE={base}\S+@sha256:[0-9a-f]{{64}}$", text)
    assert ":latest" not in text
    assert not re.search(r"--mount|--security|<<", text), "syntax that not every builder knows"
    final = re.split(r"(?m)^FROM .*\n", text)[-1]
    assert re.search(r"(?m)^USER 1000:1000$", final)
    assert not re.search(r"g\+\+|gcc|cmake|build-essential", final), "compilers stay in builder stages"
    assert path != FILEBROWSER or "--require-hashes" in text
    assert "certificates.crt" not in text
