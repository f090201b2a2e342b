"""How the images' Python packages are fetched, by pip itself, from a folder: nothing runs unless its hash is right."""

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests import patience

ROOT = Path(__file__).resolve().parents[2]
HOROVOD = ROOT / "images" / "horovod"


@pytest.fixture(scope="session")
def pip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for PYTHONPATH with the pip and setuptools that Horovod is built with."""
    tools = tmp_path_factory.mktemp("tools") / "tools"
    uv = subprocess.check_output([ROOT / "hack/bootstrap", "--uv"], text=True).strip()
    command = [uv, "pip", "install", "-q", "--python", sys.executable, "--target", tools, "--require-hashes"]
    subprocess.check_call([*command, "-r", HOROVOD / "build.txt"])
    return tools


def offline(links: Path, pip: Path) -> dict[str, str]:
    """Return an environment in which pip takes packages from a folder alone."""
    settings = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(links),
        "PIP_CONFIG_FILE": os.devnull,
        "PYTHONPATH": str(pip),
    }
    return {name: value for name, value in os.environ.items() if not name.startswith("PIP_")} | settings


# ------------------------------------------------------------------------------------------------ Horovod's source


def test_a_source_of_horovod_with_another_hash_does_not_run(tmp_path: Path, pip: Path) -> None:
    """Pip runs setup.py to learn what a source requires, before it hands it over."""
    ran = tmp_path / "ran"
    version = re.findall(r"horovod==(\S+)", (HOROVOD / "source.txt").read_text())[0]
    with tarfile.open(tmp_path / f"horovod-{version}.tar.gz", "w:gz") as archive:
        for name, content in {
            "PKG-INFO": f"Metadata-Version: 2.1\nName: horovod\nVersion: {version}\n",
            "setup.py": f"import setuptools\nopen({str(ran)!r}, 'w')\nsetuptools.setup(version={version!r})\n",
        }.items():
            entry = tarfile.TarInfo(f"horovod-{version}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content.encode()))
    env = offline(tmp_path, pip) | {"PYTHON": sys.executable}
    done = patience.run([str(HOROVOD / "build-wheel"), str(tmp_path / "out")], env=env)
    assert not ran.exists()
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


# ------------------------------------------------------------------------------------------------ install.py


def wheel(folder: Path, name: str, version: str) -> str:
    """Write a wheel without requirements; returns its hash."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Base:
    """A Python with torch, as a base image has it, and install.py beside a file of pins."""

    def __init__(self, folder: Path, pip: Path) -> None:
        self.folder, self.links, self.pip = folder, folder / "links", pip
        self.links.mkdir()
        subprocess.check_call([sys.executable, "-m", "venv", "--without-pip", folder / "python"])
        self.site = next((folder / "python").glob("lib/python3*/site-packages"))
        for name in ("torch", "torchvision"):
            self.has(name, "2.0")
            (self.site / f"{name}.py").touch()
        shutil.copy(ROOT / "images/shared/install.py", folder)

    def has(self, name: str, version: str) -> None:
        """Install a package without content."""
        info = self.site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def install(self, wanted: str, pins: str) -> subprocess.CompletedProcess[str]:
        """Run install.py as the Dockerfiles do."""
        (self.folder / "wanted.in").write_text(wanted)
        (self.folder / "pins.txt").write_text(pins)
        command = ["python/bin/python", "install.py", "dependencies", "wanted.in", "pins.txt"]
        return patience.run(command, cwd=self.folder, env=offline(self.links, self.pip))

    def versions(self) -> set[str]:
        return {path.name.removesuffix(".dist-info") for path in self.site.glob("*.dist-info")}


@pytest.fixture
def base(tmp_path: Path, pip: Path) -> Base:
    return Base(tmp_path, pip)


def test_the_bases_packages_stay_and_others_are_compared_with_their_hashes(base: Base) -> None:
    base.has("fsspec", "2.0")
    base.has("kept", "1.0")
    hashes = {name: wheel(base.links, name, "1.5") for name in ("kept", "added", "s3fs")}
    wheel(base.links, "s3fs", "1.4")
    pins = [
        "fsspec==1.5",
        *(f"{name}==1.5 ; python_version > '3' \\\n    --hash=sha256:{hashes[name]}" for name in hashes),
    ]
    done = base.install("kept>=1\nadded>=1\ns3fs>=1,<1.5\n", "# pins\n" + "\n".join(pins) + "\n")
    assert done.returncode == 0, done.stderr
    assert base.versions() == {"torch-2.0", "torchvision-2.0", "fsspec-2.0", "kept-1.0", "added-1.5", "s3fs-1.4"}
    # it follows the fsspec that is there, which is not ours: neither version nor hash of the pins can be meant
    assert [line for line in done.stdout.splitlines() if "not compared" in line] == [
        "install.py: s3fs 1.4 is not pinned for this base image, and was not compared with a hash"
    ]


def test_the_pin_of_what_follows_another_package_holds_where_that_one_is_ours(base: Base) -> None:
    base.has("fsspec", "1.5")
    hashes = {name: wheel(base.links, name, "1.5") for name in ("fsspec", "s3fs")}
    wheel(base.links, "s3fs", "1.6")
    done = base.install(
        "s3fs\n", "".join(f"{name}==1.5 ; python_version > '3' --hash=sha256:{hashes[name]}\n" for name in hashes)
    )
    assert done.returncode == 0, done.stderr
    assert "s3fs-1.5" in base.versions()
    assert "not compared" not in done.stdout


def test_a_package_with_another_hash_ends_the_build(base: Base) -> None:
    wheel(base.links, "added", "1.5")
    done = base.install("added\n", f"added==1.5 \\\n    --hash=sha256:{'0' * 64}\n")
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert "added-1.5" not in base.versions()
