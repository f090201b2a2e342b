"""On a machine that cannot run a target, `make` says so at once, with what works there instead."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def asked(folder: Path, target: str, uname: dict[str, str], *before: str, **env: str) -> subprocess.CompletedProcess:
    """Ask on a machine whose `uname` says something else."""
    told = "".join(
        f"{option}) echo {answer};; " for option, answer in ({"-s": "Linux", "-m": "x86_64"} | uname).items()
    )
    (folder / "uname").write_text(f"#!/bin/sh\ncase $1 in {told}esac\n")
    (folder / "uname").chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    return subprocess.run(
        [*before, str(ROOT / "hack/machine"), target], capture_output=True, text=True, check=False,
        env={**clean, "PATH": f"{folder}:/usr/sbin:/usr/bin:/sbin:/bin", **env},
    )  # fmt: skip


@pytest.mark.parametrize("target", ["train", "cluster"])
@pytest.mark.parametrize(
    ("uname", "named"), [({"-s": "Darwin"}, "macOS"), ({"-s": "FreeBSD"}, "FreeBSD"), ({"-m": "aarch64"}, "aarch64")]
)
def test_another_system_or_processor_is_refused_with_what_works(tmp_path, target, uname, named):
    done = asked(tmp_path, target, uname)
    assert done.returncode == 1
    assert named in done.stderr
    assert "docs/own-cluster.md" in done.stderr


@pytest.mark.root
def test_a_machine_without_apt_cannot_run_a_cluster_but_can_train(tmp_path):
    for program in ("grep", "id", "sh", "dirname"):
        (tmp_path / program).symlink_to(f"/usr/bin/{program}")
    refused = asked(tmp_path, "cluster", {}, PATH=str(tmp_path))
    assert refused.returncode == 1
    assert "no apt-get" in refused.stderr
    assert "make train" in refused.stderr
    assert asked(tmp_path, "train", {}, PATH=str(tmp_path)).returncode == 0


def test_an_own_cluster_needs_neither_root_nor_apt(tmp_path):
    assert asked(tmp_path, "cluster", {}, KUBECONFIG="/etc/hosts").returncode == 0


@pytest.mark.root
def test_a_container_is_told_from_a_machine(tmp_path):
    """Without CAP_SYS_ADMIN, as in a container, no namespace can be made."""
    done = asked(tmp_path, "cluster", {}, "setpriv", "--bounding-set", "-sys_admin")
    assert done.returncode == 1
    assert "container" in done.stderr
