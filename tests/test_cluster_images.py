"""Functions of hack/cluster by themselves: the folders of unpacked images, and the wait for an add-on's pods.

Nodes read images where they were unpacked once, so a folder that a cluster uses stays.
"""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SNAPSHOTS = "io.containerd.snapshotter.v1.overlayfs"
USE = "PART=test; . hack/cluster/settings.sh; . hack/cluster/steps.sh; "


def bash(script: str, place: Path) -> None:
    env = os.environ | {"TRAINYARD_CACHE": str(place / "cache"), "TRAINYARD_STATE": str(place / "state")}
    subprocess.run(["bash", "-euc", USE + script], cwd=ROOT, env=env, check=True, timeout=120)


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


def test_a_node_reads_files_where_they_were_unpacked_and_writes_to_lists_of_its_own(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, "images", 1)
    (tmp_path / "state/run").mkdir(parents=True)
    bash("find_images() { images=() unpacked=$CACHE/unpacked/images; }; linked_images", tmp_path)
    root = tmp_path / "state/run/containerd/root"
    assert (root / SNAPSHOTS / "snapshots/1").readlink() == folder / SNAPSHOTS / "snapshots/1"
    assert (root / "io.content/blobs/blob").samefile(folder / "io.content/blobs/blob")
    for part in ("io.bolt/meta.db", f"{SNAPSHOTS}/metadata.db"):
        assert not (root / part).samefile(folder / part)


def test_a_pod_of_before_that_goes_as_all_are_annotated_does_not_end_the_wait(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    there = 'if [ "$3" = wait ]; then [ -e "$STATE/annotated" ]; else touch "$STATE/annotated"; return 1; fi'
    bash(f". hack/cluster/extras/start.sh; kubectl() {{ {there}; }}; nudged space/operator", tmp_path)
