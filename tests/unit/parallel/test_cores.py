"""The cores that a process may use: control groups as kernels show them, affinity, processes on the node."""

import logging
import math
import os
from pathlib import Path

import pytest
from starting import opened

from trainyard import config, parallel
from trainyard.parallel import cores


def groups(root: Path, member: str, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "cgroup").mkdir(exist_ok=True)
    (root / "membership").write_text(member)
    return root / "cgroup", root / "membership"


V1 = "12:memory:/docker/a\n4:cpu,cpuacct:/kubepods/pod1/a\n3:cpuset:/kubepods/pod1/a\n0::/\n"


@pytest.mark.parametrize(
    ("member", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "350000 100000\n"}, 3.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/a/b\n", {"cpu.max": "900000 100000\n", "a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2),
        ("0::/../b\n", {"cpu.max": "100000 50000\n"}, 2),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "400000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 4),
        (
            V1,
            {"cpu/kubepods/pod1/a/cpu.cfs_quota_us": "150000", "cpu/kubepods/pod1/a/cpu.cfs_period_us": "100000"},
            1.5,
        ),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, math.inf),
        (V1, {}, math.inf),
        ("0::/\n", {"cpu.max": "rubbish"}, math.inf),
    ],
)
def test_the_least_quota_counts(tmp_path: Path, member: str, files: dict[str, str], expected: float) -> None:
    assert cores.limit(*groups(tmp_path, member, files)) == expected


def test_no_control_groups_no_limit(tmp_path: Path) -> None:
    assert cores.limit(tmp_path, tmp_path / "none") == math.inf


def test_processes_of_a_node_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    monkeypatch.setattr(cores, "limit", lambda: math.inf)
    assert [cores.share(count) for count in (1, 8, 48, 100)] == [64, 8, 1, 1]
    monkeypatch.setattr(cores, "limit", lambda: 12.5)
    assert [cores.share(count) for count in (1, 2, 4)] == [12, 6, 3]


def test_workers_0_takes_them_and_says_so(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(12)))
    monkeypatch.setattr(cores, "limit", lambda: math.inf)
    settings = {"epochs": 1, "batch": {"global": 8}, "data": {"dir": str(data), "image_size": 16, "workers": 0}}
    launched = {
        "ddp": "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT",
        "horovod": "HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK HOROVOD_LOCAL_SIZE",
    }
    for strategy, variables in launched.items():
        with monkeypatch.context() as here, caplog.at_level(logging.INFO):
            for name, value in zip(variables.split(), ("1", "3", "1", "3", "host", "1"), strict=False):
                here.setenv(name, value)
            made = config.build({**settings, "strategy": strategy})
            splits = opened(made, local_world=parallel.locate(strategy).local_world)
        assert (splits.train.workers, splits.val.workers) == (4, 4)
    assert "data.workers: 0 is 4 threads here" in caplog.text


def test_a_gpu_gets_all_cores_by_default() -> None:
    base = {"epochs": 1, "batch": {"global": 8}}
    for over, on_gpu, on_cpu in (({}, 0, 4), ({"workers": 2}, 2, 2), ({"workers": 0}, 0, 0)):
        data = config.build({**base, "data": {"dir": "synthetic", **over}}).data
        assert (data.threads(on_gpu=True), data.threads(on_gpu=False)) == (on_gpu, on_cpu)
