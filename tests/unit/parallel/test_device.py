"""What a process's device is and how it computes; the cores beside it, on a made-up /sys."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainyard import config
from trainyard.config import Config
from trainyard.parallel import cores, device
from trainyard.parallel.environment import Place


@pytest.fixture
def switches() -> Iterator[None]:
    """Torch's switches, as they were, afterwards."""
    cudnn: Any = torch.backends.cudnn
    before = torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    yield
    torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


def settings(**over: Any) -> Config:
    return config.build({"data": {"dir": "synthetic"}, "epochs": 1, "batch": {"global": 8}, **over})


@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize(
    ("precision", "tf32"), [("fp64", False), ("fp32", False), ("tf32", True), ("bf16", True), ("fp16", True)]
)
def test_fp32_is_full_and_tf32_is_a_precision_of_its_own(precision: str, tf32: bool) -> None:
    for before in (True, False):  # whatever torch's own defaults are: it convolves in TF32, and multiplies in full
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = before
        device.set_arithmetic(precision, deterministic=False)
        assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == tf32
        assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")  # what torch.compile reads
        assert torch.backends.cudnn.benchmark


@pytest.mark.usefixtures("switches")
def test_deterministic_sets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(device.WORKSPACE, raising=False)
    found = device.prepare_device("cpu", "fp32", Place(), deterministic=True)
    assert found.type == "cpu"
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ[device.WORKSPACE] == ":4096:8"
    device.set_arithmetic("fp32", deterministic=True)
    assert not torch.backends.cudnn.benchmark
    monkeypatch.setenv(device.WORKSPACE, ":16:8")  # what the user has set stays
    device.be_deterministic(os.environ)
    assert os.environ[device.WORKSPACE] == ":16:8"


def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert device.choose_device("auto", Place(3, 4, 1, 2)) == torch.device("cuda", 1)
    assert taken == [torch.device("cuda", 1)]
    assert device.choose_device("cpu", Place(3, 4, 1, 2)).type == "cpu"
    with pytest.raises(Exception, match="3 processes on this node but 2 usable GPUs"):
        device.choose_device("cuda", Place(0, 3, 0, 3))


def test_gpus_that_torch_cannot_use_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert device.unused_gpus({}, tmp_path) == ""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    said = device.unused_gpus({}, tmp_path)
    assert said.startswith("nvidia0, nvidia1 are here, and torch")
    assert "nvidia-smi" in said
    assert [device.unused_gpus({"CUDA_VISIBLE_DEVICES": value}, tmp_path) for value in ("", "-1")] == ["", ""]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device, "unused_gpus", lambda environ: said)
    for wanted, rank, lines in (("auto", 0, 1), ("auto", 1, 0), ("cpu", 0, 0)):
        assert device.choose_device(wanted, Place(rank, 2, rank, 2)).type == "cpu"
        warned = capsys.readouterr().err
        assert warned.count("\n") == lines
    assert not warned
    device.choose_device("auto", Place())
    assert capsys.readouterr().err.startswith("warning: device = 'auto' trains on the CPU: nvidia0, nvidia1 are here")


def test_cores_are_counted_as_before_the_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that binds itself to its GPU's half of the node decodes with its share of the whole."""
    monkeypatch.setattr(cores, "limit", lambda: 1000.0)
    monkeypatch.setattr(cores, "_given", [])
    had: list[int] = list(range(16))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(had))
    cores.remember()
    del had[8:]  # bound
    assert cores.share(2) == 8


GPU = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x9A, pci_device_id=0)


def system(folder: Path, node: str = "1\n") -> tuple[Path, Path]:
    """A node with 16 cores and two halves, with a GPU at the second."""
    devices, nodes = folder / "devices", folder / "nodes"
    (devices / "0000:9a:00.0").mkdir(parents=True)
    (devices / "0000:9a:00.0" / "numa_node").write_text(node)
    for number, listed in enumerate(("0-3,8-11\n", "4-7,12-15\n")):
        (nodes / f"node{number}").mkdir(parents=True)
        (nodes / f"node{number}" / "cpulist").write_text(listed)
    return devices, nodes


@pytest.mark.parametrize(
    ("allowed", "node", "expected"),
    [
        (range(16), "1\n", [4, 5, 6, 7, 12, 13, 14, 15]),
        ([0, 1, 5, 12], "1\n", [5, 12]),  # a container's share
        ([0, 1], "1\n", None),  # none of it lies there
        (range(16), "-1\n", None),  # one node only, or a kernel that does not know
        (range(16), "rubbish", None),
        (range(16), "7\n", None),
    ],
)
def test_a_process_is_bound_to_the_cores_beside_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: Any, node: str, expected: list[int] | None
) -> None:
    bound: list[list[int]] = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: GPU)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, chosen: bound.append(chosen))
    found = device.bind_to_gpu_cores(torch.device("cuda", 0), *system(tmp_path, node))
    assert (found, bound) == ((expected, [expected]) if expected else ([], []))


def test_addresses_and_lists_as_the_kernel_writes_them(tmp_path: Path) -> None:
    assert device.pci_address(GPU) == "0000:9a:00.0"
    assert (
        device.pci_address(SimpleNamespace(pci_domain_id=0x10000, pci_bus_id=3, pci_device_id=0x1F)) == "10000:03:1f.0"
    )
    assert device.pci_address(SimpleNamespace(name="an older torch")) == ""
    assert device.cores_beside("0000:00:00.0", *system(tmp_path)) == set()
    assert device.parse_cpu_list("0-2,7,9-9\n") == {0, 1, 2, 7, 9}
    assert device.parse_cpu_list("\n") == set()


def test_this_machines_own_lists_are_understood() -> None:
    for path in device.NODES.glob("node*/cpulist"):
        assert device.parse_cpu_list(path.read_text()) <= set(range(os.cpu_count() or 1))
