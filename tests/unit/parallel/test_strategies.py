"""What DDP, FSDP and Horovod send, when, in which type, and what waiting they count."""

import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import ROOT
from fleet import Fleet
from inside_ranks import settings
from torch.utils._python_dispatch import TorchDispatchMode

from tests import patience
from trainyard.config.run_plan import check_world
from trainyard.core.exits import UserError
from trainyard.parallel.horovod import tell_horovod
from trainyard.parallel.process_group import tell_nccl
from trainyard.parallel.share import share

ALL = ["ddp", "fsdp", pytest.param("horovod", marks=pytest.mark.root)]
Inside = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def inside(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Inside:
    """What ranks saw of a case, which runs once: tests compare different cases with the same plain ones."""
    return functools.cache(functools.partial(fleet.inside, tmp_path_factory.mktemp("inside")))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_accumulation_sends_gradients_once(inside: Inside, kind: str) -> None:
    once, thrice = (inside(2, "collectives", kind, forwards)[0] for forwards in ("1", "3"))
    sends = {"ddp": "c10d::allreduce_", "fsdp": "c10d::_reduce_scatter_base_"}[kind]
    assert once[sends] == {"ddp": 1, "fsdp": 2}[kind]  # a bucket; two parts of the model
    assert thrice[sends] == once[sends]
    assert "c10d::broadcast_" not in once, "buffers are sent before a validation, not every forward"


@pytest.mark.parametrize("kind", ALL)
def test_strategies_accumulate_and_clip_alike(inside: Inside, kind: str) -> None:
    alone = inside(1, "losses", "auto", "1", "0.5")[0]
    found = inside(2, "losses", kind, "3", "0.5", **{"model.channels_last": True})
    free = inside(2, "losses", kind, "1", "0")[0]
    assert found[0] == found[1]
    assert max(abs(a - b) / a for a, b in zip(alone, found[0], strict=True)) < 1e-12
    assert abs(free[-1] - alone[-1]) > 1e-3, "the norm is not limited"


def test_static_graph_tolerates_unused_parameters_and_changes_nothing(inside: Inside) -> None:
    assert "Expected to have finished reduction" in inside(2, "unused")[0]
    assert inside(2, "unused", **{"ddp.static_graph": True}) == ["", ""]
    plain = inside(2, "losses", "ddp", "1", "0")[0]
    assert plain == inside(2, "losses", "ddp", "1", "0", **{"ddp.static_graph": True})[0]


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_compiled_blocks_compute_the_same(inside: Inside, kind: str) -> None:
    over: dict[str, Any] = {"precision": "fp32"}
    eager = inside(2, "losses", kind, "1", "0", **over)[0]
    compiled = inside(2, "losses", kind, "1", "0", **over, **{"model.compile": True})[0]
    assert compiled == pytest.approx(eager, rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "key", "wire"),
    [
        ("ddp", "comm.compression", "bf16"),
        ("ddp", "comm.compression", "fp16"),
        ("fsdp", "comm.compression", "bf16"),
        pytest.param("horovod", "horovod.compression", "fp16", marks=pytest.mark.root),
    ],
)
def test_gradients_travel_in_the_type_asked_for(inside: Inside, kind: str, key: str, wire: str) -> None:
    whole = inside(2, "gradients", kind)[0]
    packed = inside(2, "gradients", kind, **{key: wire})[0]
    exact, rounded = torch.tensor(whole["values"]), torch.tensor(packed["values"])
    assert not whole["exact"][wire]
    assert packed["exact"][wire] or kind == "fsdp"  # which divides once more after
    assert 0 < float((exact - rounded).norm() / exact.norm()) < 1e-2


@pytest.mark.parametrize("kind", ALL)
def test_waiting_for_a_slow_rank_is_exposed(inside: Inside, kind: str) -> None:
    sleep = 0.4 * patience.slowness()
    first, slow = inside(2, "exposed", kind, str(sleep))
    assert first["slowed"] - first["even"] == pytest.approx(3 * sleep, abs=0.5 * sleep)
    assert slow["slowed"] < sleep, "the slow one waits for nobody"


@pytest.mark.root
def test_predividing_gives_the_same_gradients(inside: Inside) -> None:
    plain = inside(2, "gradients", "horovod")[0]
    over: dict[str, Any] = {"horovod.predivide": 2.0, "horovod.cycle_ms": 0.5, "horovod.fusion_mb": 1}
    divided = inside(2, "gradients", "horovod", **over)[0]
    torch.testing.assert_close(torch.tensor(divided["values"]), torch.tensor(plain["values"]))


@pytest.mark.root
def test_a_rank_that_waits_for_horovod_keeps_no_core_busy(inside: Inside) -> None:
    assert inside(2, "sleeps", "horovod")[0] > 20, "by itself it yields its core to others, and takes it again"


def test_horovod_is_told_by_its_environment() -> None:
    environ = {"HOROVOD_CYCLE_TIME": "7"}
    tell_horovod(settings().horovod, environ)
    assert environ == {"HOROVOD_CYCLE_TIME": "7"}
    tell_horovod(settings(**{"horovod.cycle_ms": 0.1, "horovod.fusion_mb": 64}).horovod, environ)
    assert environ == {"HOROVOD_CYCLE_TIME": "0.1", "HOROVOD_FUSION_THRESHOLD": str(64 * 1024 * 1024)}


@pytest.mark.parametrize(("wire", "native"), [("none", True), ("none", False), ("bf16", True), ("fp64", True)])
def test_nccl_averages_while_it_sums(tmp_path: Path, wire: str, native: bool) -> None:
    """In a group that sends nothing and keeps what it is given, as torch's own tests have it."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from trainyard.parallel.ddp import WIRE, Reduction, average_bucket
    from trainyard.parallel.waiting import Waiting

    sent: list[tuple[str, float]] = []

    class Sent(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func._schema.name == "c10d::allreduce_":
                sent.append((("sum", "average")[args[2].op()], float(args[0][0][0])))
            return func(*args, **(kwargs or {}))

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        state = Reduction(WIRE.get(wire), Waiting(torch.device("cpu")), averages=native)
        bucket: Any = SimpleNamespace(buffer=lambda: torch.full((3,), 8.0), is_last=lambda: True)
        with Sent():
            average_bucket(state, bucket)
    finally:
        dist.destroy_process_group()
    average = native and wire != "fp64"
    how = "average" if average else "sum"
    assert sent == [(how, 8.0 if average or wire == "fp64" else 2.0)]


def test_nccl_is_told_by_its_environment() -> None:
    """Names that this torch knows; what the user has set stays."""
    environ = {"TORCH_NCCL_RETHROW_CUDA_ERRORS": "1"}
    tell_nccl(environ)
    assert environ == {"TORCH_NCCL_RETHROW_CUDA_ERRORS": "1", "TORCH_NCCL_TEARDOWN_ON_TIMEOUT": "1"}
    fresh: dict[str, str] = {}
    tell_nccl(fresh)
    assert fresh["TORCH_NCCL_RETHROW_CUDA_ERRORS"] == "0"
    header = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
    assert all(f'"{name}"' in header.read_text() for name in fresh)


@pytest.mark.parametrize(
    ("name", "world", "accumulation", "over", "words"),
    [
        ("horovod", 3, 1, {"horovod.op": "adasum"}, r"horovod.op = 'adasum' on 3 processes: needs a power of two"),
        (
            "horovod",
            2,
            1,
            {"horovod.op": "adasum", "optimizer.clip_norm": 1.0},
            r"optimizer.clip_norm = 1.0 with .*set",
        ),
        (
            "horovod",
            2,
            1,
            {"horovod.op": "adasum", "precision": "fp16", "device": "cuda"},
            r"precision = 'fp16' .*bf16",
        ),
        (
            "horovod",
            2,
            1,
            {"horovod.op": "adasum", "horovod.predivide": 2.0},
            r"horovod.predivide = 2.0 .* set it to 1",
        ),
        ("horovod", 2, 1, {"comm.compression": "bf16"}, r"comm.compression = 'bf16': .*set horovod.compression"),
        (
            "horovod",
            2,
            1,
            {"horovod.compression": "fp16", "comm.gradients": "fp64"},
            r"horovod.compression .*one of the",
        ),
        ("ddp", 2, 2, {"ddp.static_graph": True}, r"ddp.static_graph = True with 2 forwards .*set one"),
    ],
)
def test_impossible_combinations_are_refused(
    name: str, world: int, accumulation: int, over: dict[str, Any], words: str
) -> None:
    found = settings(**over)
    check_world(found, name if "static" in words else "ddp", 1, accumulation)
    with pytest.raises(UserError, match=words):
        check_world(found, name, world, accumulation)


@pytest.mark.parametrize(
    "over",
    [
        {"comm.compression": "bf16", "comm.gradients": "fp64"},
        {"comm.compression": "fp16", "precision": "fp64"},
        {"comm.backend": "nccl"},
    ],
)
def test_impossible_settings_are_refused_at_once(over: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"comm\.\w+ = .*; (set|use) "):
        settings(**over)


def test_trees_arrive_as_they_were() -> None:
    tree = {"a": torch.arange(3), "b": [torch.ones(()), {"c": torch.zeros(2, 0)}], "d": 1.5, "e": None}
    sent: list[Any] = []

    def to_second(value: Any) -> Any:
        sent.append(value)
        return value

    share(tree, to_second, to_second, torch.device("cpu"))
    messages = iter(sent)
    arrived = share({}, lambda _: next(messages), lambda _: next(messages), torch.device("cpu"))
    assert str(arrived) == str(tree)


def test_nothing_outside_asks_which_strategy_it_is() -> None:
    folder = ROOT / "src/trainyard"
    for path in {*folder.rglob("*.py")} - {*(folder / "parallel").rglob("*.py")}:
        lines = [line for line in path.read_text().splitlines() if line.lstrip().startswith(("if ", "elif "))]
        named = [line for line in lines if "horovod" in line.lower() or "fsdp" in line.lower() or '"ddp"' in line]
        assert not named or path.name == "run_plan.py", f"{path}: {named}"
