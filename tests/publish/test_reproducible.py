"""Wheel, sdist, chart and images' manifests are the same bytes when they are made elsewhere, at another time."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from hack.publish import __main__ as publishing
from hack.publish import chart, layout, packages
from tests import checkout
from tests.charts import helm

pytestmark = pytest.mark.takes(60)
EPOCH = 1_790_000_000
DIGESTS = {f"trainyard-{name}": f"sha256:{len(name) % 10}{'0' * 63}" for name in ("pytorch", "horovod", "filebrowser")}


def elsewhere(tree: Path, to: Path) -> Path:
    """Copy a tree to a folder of another name, written in another order, at another time, by another mask."""
    before = os.umask(0o077)
    try:
        for path in sorted(tree.rglob("*"), reverse=True):
            place = to / path.relative_to(tree)
            if ".git" in path.parts or "build" in path.relative_to(tree).parts[:1]:
                continue
            if path.is_symlink():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(path.readlink())
            elif path.is_file():
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)
                place.chmod(0o700 if os.access(path, os.X_OK) else 0o600)
                os.utime(place, (1e9, 1e9))
    finally:
        os.umask(before)
    return to


@pytest.fixture(scope="module")
def trees(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two trees of the same content."""
    return [elsewhere(tree, tmp_path_factory.mktemp(name) / name) for name in ("one", "another-place")]


@pytest.fixture(scope="module")
def built(trees: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[list[Path]]:
    """Sdist and wheel of each."""
    return [packages.build(one, tmp_path_factory.mktemp("packages"), EPOCH) for one in trees]


def test_wheel_and_sdist_are_equal_byte_for_byte(built: list[list[Path]]):
    first, second = built
    assert [path.name for path in first] == [path.name for path in second]
    assert {path.suffix for path in first} == {".whl", ".gz"}
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_the_wheel_has_the_compiled_decoder_and_the_times_of_the_commit(built: list[list[Path]]):
    (wheel,) = [path for path in built[0] if path.suffix == ".whl"]
    with zipfile.ZipFile(wheel) as whole:
        members = whole.infolist()
    assert any(one.filename.endswith(".so") for one in members)
    assert {one.date_time[:3] for one in members} == {(2026, 9, 21)}


def test_the_wheel_is_a_tool_of_its_own_without_torch(built: list[list[Path]], tmp_path: Path):
    """Installed by `uv tool install` into an empty folder, as a reader without a clone does it."""
    (wheel,) = [path for path in built[0] if path.suffix == ".whl"]
    uv = subprocess.check_output([checkout.ROOT / "hack/bootstrap", "--uv"], text=True).strip()
    env = os.environ | {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    subprocess.run([uv, "tool", "install", "-q", "--python", sys.executable, wheel], check=True, cwd=tmp_path, env=env)
    said = subprocess.check_output([tmp_path / "bin" / "trainyard", "--version"], text=True, cwd=tmp_path)
    assert said.startswith("trainyard ")
    packages = list((tmp_path / "tools").rglob("site-packages"))
    assert len(packages) == 1
    assert not list(packages[0].glob("torch*"))
    megabytes = sum(path.stat().st_size for path in packages[0].rglob("*") if path.is_file()) / 1e6
    assert megabytes < 200, "docs/release.md says how much it takes"


def another_projects_wheel(folder: Path) -> Path:
    """Write a wheel of a distribution `trainyard` as an index has one: with a package of the same name."""
    path, info = folder / "trainyard-0.0.3-py3-none-any.whl", "trainyard-0.0.3.dist-info"
    files = {"trainyard/__init__.py": "", "trainyard/track.py": "", f"{info}/RECORD": ""}
    files[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: trainyard\nVersion: 0.0.3\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text or "".join(f"{one},,\n" for one in files if name.endswith("RECORD")))
    return path


@pytest.mark.parametrize("ours_last", [False, True])
def test_mixed_with_another_projects_package_it_refuses_to_start(
    built: list[list[Path]], tmp_path: Path, ours_last: bool
):
    (ours,) = [path for path in built[0] if path.suffix == ".whl"]
    theirs = another_projects_wheel(tmp_path)
    uv = subprocess.check_output([checkout.ROOT / "hack/bootstrap", "--uv"], text=True).strip()
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, tmp_path / "venv"], check=True)
    install = [uv, "pip", "install", "-q", "--python", python, "--no-index", "--no-deps"]
    starts = (python.with_name("trainyard"), "--version"), (python, "-m", "trainyard"), (python, "-m", "trainers.ddp")

    def start(*words: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)

    for wheel in (theirs, ours) if ours_last else (ours, theirs):
        subprocess.run([*install, wheel], check=True)
    for words in starts:
        done = start(*words)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert "trainyard-0.0.3.dist-info is another distribution called trainyard" in done.stderr
        assert "-m pip uninstall trainyard trainyard-kubernetes`" in done.stderr
        assert done.stderr.count("\n") == 1
    both = ["trainyard", "trainyard-kubernetes"]
    subprocess.run([uv, "pip", "uninstall", "-q", "--python", python, *both], check=True)
    subprocess.run([*install, ours], check=True)
    assert start(*starts[0]).returncode == 0


def test_the_sdist_builds_the_wheel(built: list[list[Path]]):
    """It is what the wheel was made from, so it holds the sources of the decoder, and the license."""
    (sdist,) = [path for path in built[0] if path.suffix == ".gz"]
    with tarfile.open(sdist) as whole:
        names = whole.getnames()
    assert any(name.endswith("/LICENSE") for name in names)
    assert any(name.endswith(".c") for name in names)


@pytest.fixture(scope="module")
def packed(trees: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The chart of each, as it is published, packed."""
    found = []
    for one in trees:
        work = tmp_path_factory.mktemp("chart")
        copied = chart.copy(one, work)
        chart.write(copied, "registry.example.com/team", DIGESTS, {"version": "0.1.0"})
        found.append(chart.package(copied, work / "packed", EPOCH))
    return found


def test_the_chart_is_equal_byte_for_byte(packed: list[Path]):
    one, other = packed
    assert one.read_bytes() == other.read_bytes()
    assert one.stat().st_mtime == EPOCH


@pytest.mark.parametrize("program", helm.HELMS)
def test_the_packed_chart_renders_as_helms_own_package(
    program: str, trees: list[Path], packed: list[Path], tmp_path: Path
):
    copied = chart.copy(trees[0], tmp_path)
    chart.write(copied, "registry.example.com/team", DIGESTS, {"version": "0.1.0"})
    helm.run("helm3", "package", copied, "-d", tmp_path / "own")
    (own,) = (tmp_path / "own").glob("*.tgz")
    values = helm.merged(helm.everything(), helm.at("global.image", {"registry": "", "tag": ""}))
    del values["global"]["image"]
    texts = [
        helm.run(program, "template", "run", one, "-f", "-", stdin=helm.yaml.safe_dump(values))
        for one in (own, packed[0])
    ]
    assert texts[0] == texts[1]
    assert DIGESTS["trainyard-pytorch"] in texts[0]


@pytest.mark.root
def test_images_are_compressed_to_the_same_digests(images: Path, tmp_path: Path):
    wanted = {name: name for name in DIGESTS}
    staged = [publishing.stage_images(images, wanted, tmp_path / name) for name in ("one", "other")]
    assert staged[0] == staged[1]
    assert set(staged[0]) == set(DIGESTS)
    for name in DIGESTS:
        (layer,) = layout.manifest(tmp_path / "one", name)["layers"]
        assert layer["mediaType"].endswith("+gzip")


def test_an_image_that_is_missing_is_named(images: Path, tmp_path: Path):
    with pytest.raises(publishing.PublishError, match="has 0 images trainyard-other, and one is needed"):
        publishing.stage_images(images, {"dataset": "trainyard-other"}, tmp_path / "staged")
