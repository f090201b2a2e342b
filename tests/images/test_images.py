"""The built images as pods meet them: user, labels, what they hold, and ranks started over ssh."""

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from hack.images import compare
from tests import patience
from tests.images import inside

pytestmark = [pytest.mark.images, pytest.mark.takes(45)]
ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
CACHE = Path(os.environ.get("TRAINYARD_CACHE", Path.home() / ".cache" / "trainyard"))


@pytest.fixture(scope="session")
def layout() -> Path:
    """The OCI layout with all images, built if need be."""
    out = subprocess.check_output([str(ROOT / "hack/images/build")], text=True)
    return CACHE / "images" / out.splitlines()[0].removeprefix("TAG=")


def run(image: str, command: str) -> str:
    """Run this folder's inside.py in an image; return what it printed, of which buildah was seen to lose the end."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # the image's user is another
        mounts = ["-v", f"{HERE}:/tests:ro", "-v", f"{folder}:/printed"]
        program = ["sh", "-c", 'python /tests/inside.py "$0" > /printed/text', command]
        done = patience.run([str(ROOT / "hack/images/run"), image, *mounts, "--", *program])
        printed = "".join(path.read_text() for path in Path(folder).iterdir())
        assert done.returncode == 0, printed + done.stderr
        return printed


def facts(image: str) -> dict[str, Any]:
    """Return what inside.py finds in an image."""
    said = run(image, "facts")
    found = re.search(r"FACTS (.+)", said)
    assert found, f"no facts: {said!r}"
    return json.loads(found[1])


@pytest.fixture(scope="session")
def base(layout: Path) -> dict[str, Any]:
    return facts("base")


@pytest.mark.parametrize("name", ["pytorch", "horovod"])
def test_user_packages_and_compilers(layout: Path, base: dict[str, Any], name: str) -> None:
    found = facts(name)
    assert (found["uid"], found["gid"]) == (1000, 1000)
    assert found["home"] == found["cwd"] == "/home/trainer"
    assert found["torch"] == base["torch"], "the base's torch must stay"
    assert found["numpy"] == base["numpy"]
    assert found["trainyard"]
    assert bool(found["horovod"]) == (name == "horovod")
    assert found["decoder"].startswith("native "), "the wheel holds the decoder in C"
    assert set(found["compilers"]) <= set(base["compilers"]), "compilers stay in builder stages"


def test_base_is_as_awkward_as_the_real_one(base: dict[str, Any]) -> None:
    assert "a0+" in base["torch"][0], "a pre-release with a local part, which `torch>=...` would replace"
    assert base["mpi_in_usr"] == []
    assert base["compilers"] == []


def test_labels_user_and_no_secret_in_the_image(layout: Path) -> None:
    index = json.loads((layout / "index.json").read_text())
    names = set()
    for entry in index["manifests"]:
        manifest = json.loads(blob(layout, entry["digest"]))
        config = json.loads(blob(layout, manifest["config"]["digest"]))["config"]
        labels = config["Labels"]
        names.add(entry["annotations"]["org.opencontainers.image.ref.name"])
        assert config["User"] == "1000:1000"
        assert config["WorkingDir"] == "/home/trainer"
        assert labels["org.opencontainers.image.version"] == layout.name
        assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
        assert labels["org.opencontainers.image.base.name"]
        assert not any("CERT" in line or "PROXY" in line.upper() for line in config["Env"]), "nothing of the builder's"
    assert names == {f"localhost/trainyard-{name}:{layout.name}" for name in ("pytorch", "horovod", "filebrowser")}


def test_the_file_servers_image_is_small(layout: Path) -> None:
    index = json.loads((layout / "index.json").read_text())
    manifests = {entry["annotations"]["org.opencontainers.image.ref.name"]: entry for entry in index["manifests"]}
    entry = manifests[f"localhost/trainyard-filebrowser:{layout.name}"]
    layers = [
        layout / "blobs" / one["digest"].replace(":", "/")
        for one in json.loads(blob(layout, entry["digest"]))["layers"]
    ]
    size = sum(layer.stat().st_size for layer in layers)
    print(f"\ntrainyard-filebrowser has {size / 1e6:.0f} MB")
    assert size < 250e6


def blob(layout: Path, digest: str) -> str:
    return (layout / "blobs" / digest.replace(":", "/")).read_text()


def test_environment_and_secrets_reach_ranks_that_ssh_starts(layout: Path) -> None:
    out = run("horovod", "ranks")
    ranks = sorted(
        (json.loads(line[5:]) for line in out.splitlines() if line.startswith("RANK ")), key=lambda r: r["rank"]
    )
    assert [rank["rank"] for rank in ranks] == [0, 1], out
    for rank in ranks:
        assert rank["size"] == 2
        assert rank["sum"] == [3.0, 3.0, 3.0]
        assert rank["secret"] == inside.SECRET
        assert rank["prefix"] == "/opt/hpcx/ompi"
        assert rank["uid"] == 1000
        assert not rank["ssh"]
    assert "CODE 0 " in out
    assert "WORKER 0" in out


A_FILE_FOR_NULL = """
mount --make-rprivate / && mount -t tmpfs none "$1"
for device in zero full random urandom fuse; do
  [ ! -e /dev/$device ] || { touch "$1/$device"; mount --bind /dev/$device "$1/$device"; }
done
touch "$1/null" && mount --move "$1" /dev
shift
"$@"
"""


def test_a_machine_whose_dev_null_is_a_file_gets_the_device(layout: Path, tmp_path: Path) -> None:
    """Some sandboxes are such; in the image /dev is read-only, where a device can be written to and a file cannot."""
    place = ["unshare", "-m", "sh", "-ec", A_FILE_FOR_NULL, "sh", str(tmp_path)]
    program = [str(ROOT / "hack/images/run"), "base", "--", "sh", "-c", "test -c /dev/null; : <> /dev/null"]
    done = patience.run([*place, *program])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/dev/null is a file, not a device: it is recreated" in done.stderr


def test_what_two_images_build_of_the_same_sources_differs_in_times_alone(layout: Path) -> None:
    """Both build the wheel and install it, each by itself: a second build of the same steps, at another time."""
    ours, theirs = (compare.list_layers(layout, f"trainyard-{name}")[-2:] for name in ("pytorch", "horovod"))
    found = dict(compare.find_differences(ours, theirs))
    assert found, "equal layers: docs/release.md may say so"
    assert {why for causes in found.values() for why in causes} <= {compare.TIMES, compare.BYTECODE}, found
