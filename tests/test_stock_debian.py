"""The one-node cluster on stock machines, with systemd and cgroup v2: a whole trial in a virtual machine."""

import os
import re
from pathlib import Path

import pytest

from tests import patience

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(6 * 3600),  # emulated, all is some ten times slower
    pytest.mark.skipif(os.geteuid() != 0, reason="root is needed to make a machine's disk"),
]
ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(("suite", "name"), [("bookworm", "12 (bookworm)"), ("trixie", "13 (trixie)")])
def test_cluster_and_both_jobs_on_a_stock_debian(suite: str, name: str) -> None:
    done = patience.run(["hack/vm/run", suite, "300"], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.strip() for line in done.stdout.replace("\r", "").splitlines()]
    expected = [
        rf"\d+ s  Debian GNU/Linux {re.escape(name)}, Linux .*, cgroups: cgroup2fs, pid 1: systemd",
        r"\d+ s  the cluster is up",
        r"\d+ s  it ended: OOMKilled",
        r"PyTorchJob trial-pytorchjob-\w+: .*Succeeded.*",
        r"MPIJob trial-mpijob-\w+: .*Succeeded.*",
        r"cluster: down after .*",
        r"\d+ s  the machine's cgroups are as they were: \d+ of them",
    ]
    found = [next((at for at, line in enumerate(said) if re.fullmatch(one, line)), None) for one in expected]
    assert None not in found, dict(zip(expected, found, strict=True))
    assert found == sorted(found)
