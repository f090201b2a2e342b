"""Functions of hack/cluster by themselves: the folders of unpacked images, and the wait for an add-on's pods.

Nodes read images where they were unpacked once, so a folder that a cluster uses stays.
"""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SNAPSHOTS = "io.containerd.snapshotter.v1.overlayfs"
USE = "PART=test; . hack/cluster/settings.sh; . hack/cluster/steps.sh; "


def bash(script: str, place: Path) -> str:
    env = os.environ | {"TRAINYARD_CACHE": str(place / "cache"), "TRAINYARD_STATE": str(place / "state")}
    command = ["bash", "-euc", USE + script]
    done = subprocess.run(command, cwd=ROOT, env=env, check=True, timeout=120, stdout=subprocess.PIPE, text=True)
    return done.stdout


def unpacked(place: Path, name: str, changed: int) -> Path:
    """A folder of unpacked images, last used at that time."""
    folder = place / "cache/unpacked" / name
    for part, file in {
        "io.content/blobs": "blob",
        "io.bolt": "meta.db",
        f"{SNAPSHOTS}/snapshots/1/fs": "program",
    }.items():
        (folder / part).mkdir(parents=True)
        (folder / part / file).write_text(name)
    (folder / SNAPSHOTS / "metadata.db").write_text(name)
    os.utime(folder, (changed, changed))
    return folder


def test_the_newest_folders_stay_and_those_that_a_cluster_uses(tmp_path: Path) -> None:
    for number in range(1, 8):
        unpacked(tmp_path, str(number), number)
    (tmp_path / "state/run").mkdir(parents=True)
    (tmp_path / "other/run").mkdir(parents=True)
    for number, run in {1: "other/run", 2: "gone/run"}.items():
        (tmp_path / f"cache/unpacked/{number}/used-by").mkdir()
        (tmp_path / f"cache/unpacked/{number}/used-by/trainyard-node-{number}").symlink_to(tmp_path / run)
        os.utime(tmp_path / f"cache/unpacked/{number}", (number, number))
    bash('use_unpacked "$CACHE/unpacked/3"', tmp_path)
    assert sorted(folder.name for folder in (tmp_path / "cache/unpacked").iterdir()) == ["1", "3", "6", "7"]
    assert [link.readlink() for link in (tmp_path / "cache/unpacked/3/used-by").iterdir()] == [tmp_path / "state/run"]


@pytest.mark.root
def test_a_node_reads_files_where_they_were_unpacked_and_writes_to_lists_of_its_own(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, "images", 1)
    (tmp_path / "state/run").mkdir(parents=True)
    bash("find_images() { images=() unpacked=$CACHE/unpacked/images; }; linked_images", tmp_path)
    root = tmp_path / "state/run/containerd/root"
    assert (root / SNAPSHOTS / "snapshots/1").readlink() == folder / SNAPSHOTS / "snapshots/1"
    assert (root / "io.content/blobs/blob").samefile(folder / "io.content/blobs/blob")
    for part in ("io.bolt/meta.db", f"{SNAPSHOTS}/metadata.db"):
        assert not (root / part).samefile(folder / part)


def layout(place: Path, tag: str, changed: int, layers: dict[str, int]) -> Path:
    """Built images, by the names and sizes of their layers."""
    folder = place / "cache/images" / tag
    (folder / "blobs/sha256").mkdir(parents=True)
    for name, size in layers.items():
        (folder / "blobs/sha256" / name).touch()
        os.truncate(folder / "blobs/sha256" / name, size)
    os.utime(folder, (changed, changed))
    return folder


def test_until_a_trees_images_are_built_a_node_has_those_of_the_tree_before(tmp_path: Path) -> None:
    layout(tmp_path, "0.1.0-older", 1, {"base": 64 << 20})
    newest = layout(tmp_path, "0.1.0-newest", 2, {"base": 64 << 20, "torch": 64 << 20, "sources": 1 << 20})
    find = "images=(own.tar) unpacked=$CACHE/unpacked/key; find_earlier_images; echo ${images[*]} $unpacked"
    where = tmp_path / "cache/unpacked"
    assert bash(find, tmp_path).split() == ["own.tar", str(newest), f"{where}/key-0.1.0-newest"]
    layers = where / "key-0.1.0-older/io.containerd.content.v1.content/blobs/sha256"
    layers.mkdir(parents=True)
    (layers / "base").touch()
    assert bash(find, tmp_path).split() == ["own.tar", str(newest), f"{where}/key-0.1.0-newest"], "torch is missing"
    (layers / "torch").touch()
    assert bash(find, tmp_path).split() == ["own.tar", f"{where}/key-0.1.0-older"]
    built = find.replace("own.tar", f"own.tar {newest}")
    assert bash(built, tmp_path).split() == ["own.tar", str(newest), f"{where}/key"], "this tree's own"


def test_a_pod_of_before_that_goes_as_all_are_annotated_does_not_end_the_wait(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    there = 'if [ "$3" = wait ]; then [ -e "$STATE/annotated" ]; else touch "$STATE/annotated"; return 1; fi'
    bash(f". hack/cluster/extras/start.sh; kubectl() {{ {there}; }}; nudged space/operator", tmp_path)
