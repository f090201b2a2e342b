"""Two builds of an image are compared by layer, and what differs is named with its cause."""

import gzip
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from hack.images import compare
from hack.publish import layout
from tests.publish.conftest import put

pytestmark = pytest.mark.takes(5)
ROOT = Path(__file__).resolve().parents[2]
CODE, OTHER_CODE = b"\x01" * 16 + b"code", b"\x02" * 16 + b"code"
FILES = {"app/run.py": b"run", "app/run.pyc": CODE, "var/log/apt.log": b"monday"}


def tar(files: dict[str, bytes], time: float = 1.0, mode: int = 0o644) -> bytes:
    """Return a layer with these files."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), time, mode
            archive.addfile(entry, io.BytesIO(content))
    return held.getvalue()


def image(folder: Path, *layers: bytes) -> Path:
    """Write an OCI layout with one image of these layers."""
    config = put(folder, b"{}")
    whole = {"config": {"digest": config}, "layers": [{"digest": put(folder, one)} for one in layers]}
    entry = {"digest": put(folder, json.dumps(whole).encode()), "annotations": {layout.NAME: "localhost/app:0.1.0-a"}}
    (folder / "index.json").write_text(json.dumps({"manifests": [entry]}))
    return folder


def compared(folder: Path, ours: tuple[bytes, ...], theirs: tuple[bytes, ...]) -> tuple[int, list[str]]:
    """Compare two images by the command; return its exit code and lines."""
    places = [str(image(folder / name, *made)) for name, made in (("one", ours), ("other", theirs))]
    command = [sys.executable, "-m", "hack.images.compare", places[0], "app", places[1], "localhost/app:0.1.0-a"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


def test_equal_layers_are_equal_however_they_are_compressed(tmp_path: Path) -> None:
    layer = tar(FILES)
    assert compared(tmp_path, (layer, layer), (layer, gzip.compress(layer))) == (0, ["2 of 2 layers are equal"])


@pytest.mark.parametrize(("other", "said"), [
    (tar(FILES, time=2.0), "  only the time differs: app/run.py, app/run.pyc, var/log/apt.log"),
    (tar(FILES, mode=0o600), "  mode or owner: app/run.py, app/run.pyc, var/log/apt.log"),
    (tar(FILES | {"app/run.pyc": OTHER_CODE}), f"  {compare.BYTECODE}: app/run.pyc"),
    (tar(FILES | {"app/run.pyc": CODE + b"!"}), "  content: app/run.pyc"),
    (tar(FILES | {"app/run.py": b"walk"}), "  content: app/run.py"),
    (tar(FILES | {"var/log/apt.log": b"today"}), "  logs and caches of installers: var/log/apt.log"),
    (tar(FILES | {"more": b""}), "  only in one of them: more"),
    (tar(dict(reversed(FILES.items()))), "  the order of its files"),
])  # fmt: skip
def test_each_cause_is_named(tmp_path: Path, other: bytes, said: str) -> None:
    code, lines = compared(tmp_path, (tar({}), tar(FILES)), (tar({}), other))
    assert code == 1
    assert lines == ["1 of 2 layers are equal", "layer 2:", said]


def test_a_layer_more_is_a_difference(tmp_path: Path) -> None:
    code, lines = compared(tmp_path, (tar({}),), (tar({}), tar(FILES)))
    assert (code, lines) == (1, ["1 layers and 2: those that both have are compared", "1 of 2 layers are equal"])


def test_an_image_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has 0 images none: it has localhost/app"):
        compare.find_image(image(tmp_path, tar({})), "none")
