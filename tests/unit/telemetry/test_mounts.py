"""Which mount a file is on, by the kernel's table: no call is made on a mount that may hang."""

from pathlib import Path

from trainyard.telemetry import mounts


def test_mounts_are_told_by_name_alone(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        "30 22 0:40 / /data rw shared:2 - nfs4 server:/export/a\\040b rw,hard\n"
        "31 30 0:41 / /data/with\\040space rw - fuse.glusterfs vol rw\n"
    )
    assert str(mounts.mount_of("/data/train/shard", table)) == "/data (nfs4, server:/export/a b)"
    assert str(mounts.mount_of("/data/with space/x", table)) == "/data/with space (fuse.glusterfs, vol)"
    assert str(mounts.mount_of("/database", table)) == "/ (ext4, /dev/sda1)"
