"""torch.compile through the whole engine: the same losses, one program for training and one for validation."""

import contextlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import TRAIN, VAL, events
from fleet import Fleet, under_torchrun
from torch import nn

from trainyard import config
from trainyard.core.exits import UserError
from trainyard.data.sampler import Order
from trainyard.parallel.environment import Place
from trainyard.parallel.fsdp import Fsdp
from trainyard.training.compiled import allow_programs, forward_sizes, keep_graphs_whole, prepare_compiler
from trainyard.training.trainer import build_learner, open_data

pytestmark = [pytest.mark.takes(60), pytest.mark.ranks(2)]

SHORT: dict[str, Any] = {
    "model.name": "little_models:blocks", "model.batch_norm": "local", "precision": "fp32", "batch.global": 8,
    "epochs": 2, "validate.batch": 300, "checkpoint.every_steps": 0, "optimizer.lr": 1.0, "host.gc_steps": 6,
}  # fmt: skip

# With vectors, half of the processor time would go into trying which there are
QUICK = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "0"}


# What a compiler imports, which is most of what a short run would cost
COMPILERS = {"aot_eager": ["torch._dynamo.backends.debugging"], "inductor": ["torch._inductor.compile_fx"]}


def counted(
    fleet: Fleet, run: Path, world: int, compiler: str = "", more: dict[str, str] | None = None, **over: Any
) -> list[dict[str, Any]]:
    """Run, with more in its environment, and what each rank counted."""
    folder = run.parent / f"{run.name}-counted"
    folder.mkdir(exist_ok=True)
    fleet.trainer.forker.load("torch._dynamo.utils", *COMPILERS.get(compiler, ()), **QUICK)
    env = {"COUNTED": str(folder), "COMPILER": compiler, **QUICK, **(more or {})}
    codes, output = fleet.wait(fleet.start(run, world, "counted", env, **{**SHORT, **over}))
    assert codes == [0] * world, output
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def same_losses(run: Path, eager: Path) -> bool:
    """Whether each step and each validation has the loss that it has without the compiler."""
    pairs = [
        (one["loss"], other["loss"])
        for kind in ("train", "validate")
        for one, other in zip(events(run, kind), events(eager, kind), strict=True)
    ]
    return bool(pairs) and all(one == pytest.approx(other, rel=1e-3) for one, other in pairs)


@pytest.fixture(scope="module")
def eager(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run of two processes that compiles nothing, and what each rank counted."""
    run = tmp_path_factory.mktemp("eager") / "run"
    return run, counted(fleet, run, 2, deterministic=True)


def test_compiled_once_for_training_and_once_for_validation(
    fleet: Fleet, tmp_path: Path, eager: tuple[Path, list[dict[str, Any]]]
) -> None:
    """Ragged batches end each epoch and each validation; blocks are computed again in backward."""
    assert TRAIN % 8
    assert VAL % 300
    over = {"strategy": "ddp", "model.compile": True, "model.checkpointing": True, "deterministic": True}
    found = counted(fleet, tmp_path / "run", 2, "aot_eager", **over)
    assert [rank["programs"] for rank in found] == [2, 2]
    assert same_losses(tmp_path / "run", eager[0])


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "world", "compiler"), [("single", 1, "inductor"), ("fsdp", 2, "aot_eager")])
def test_other_ways_are_compiled_once_for_training_and_once_for_validation(
    fleet: Fleet, tmp_path: Path, kind: str, world: int, compiler: str
) -> None:
    """On two processes FSDP also has an empty forward."""
    over = {"strategy": kind, **({"model.name": "little_models:least"} if compiler == "inductor" else {})}
    eager = fleet.train(tmp_path / "eager", world, **{**SHORT, **over})
    found = counted(fleet, tmp_path / "run", world, compiler, **over, **{"model.compile": True})
    assert [rank["programs"] for rank in found] == [2] * world
    assert same_losses(tmp_path / "run", eager)


def test_fsdp_has_its_blocks_compiled_and_nothing_around_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three blocks of one shape are one program for training and one for validation."""
    for name, value in under_torchrun(1)[0].items():
        monkeypatch.setenv(name, value)
    base = {"data": {"dir": "synthetic", "synthetic_samples": 8, "image_size": 16}, "batch": {"global": 8}, "epochs": 1}
    own = config.build(
        base, {"run": {"dir": str(tmp_path)}, "model": {"name": "little_models:blocks", "compile": True}}
    )
    place = Place(0, 1, 0, 1)
    with fresh_dynamo() as counters:
        strategy = Fsdp(
            place, torch.device("cpu"), own.comm, own.fsdp, precision="fp32",
            compile_options={"backend": "eager", "dynamic": False},
        )  # fmt: skip
        try:
            plan = config.make_plan(own, "ddp", 1)
            learner = build_learner(own, plan, strategy, open_data(own, plan, strategy))
            assert learner.model is learner.validated is learner.plain
            pictures = torch.ones(2, 3, 16, 16)
            learner.model(pictures).sum().backward()
            with torch.no_grad():
                learner.validated(pictures)
        finally:
            strategy.close()
        assert counters["stats"]["unique_graphs"] == 2


def test_each_size_of_images_has_a_program(fleet: Fleet, tmp_path: Path) -> None:
    """Twelve sizes, more than torch would build by itself: a program each, one for validation, none built twice."""
    over = {"data.size_start": 9, "data.image_size": 20, "data.val_resize": 0, "data.size_ramp": [0.0, 1.0]}
    grows = {**over, "data.size_multiple": 1, "epochs": 12, "batch.global": 58, "validate.every_epochs": 6}
    found = counted(fleet, tmp_path / "run", 1, "eager", **grows, **{"model.compile": True})
    sizes = [event["image_size"] for event in events(tmp_path / "run", "train")]
    assert sizes == [9, 10, 11, 12, 13, 14, 14, 15, 16, 17, 18, 19]
    assert found[0]["programs"] == len(set(sizes)) + 1


@contextlib.contextmanager
def fresh_dynamo() -> Iterator[dict[str, Counter[str]]]:
    """Within this context torch.compile has built nothing, and has its own limit; what it counts."""
    from torch._dynamo import config as dynamo
    from torch._dynamo.utils import counters

    with dynamo.patch(recompile_limit=dynamo.recompile_limit):
        torch._dynamo.reset()
        counters.clear()
        yield counters
    torch._dynamo.reset()


def test_older_torch_has_its_limit_by_another_name() -> None:
    older = SimpleNamespace(cache_size_limit=8)  # before 2.7
    for count, limit in ((24, 24), (1, 24)):
        allow_programs(count, older)
        assert vars(older) == {"cache_size_limit": limit}


def test_each_part_that_fsdp_compiles_has_a_program_for_each_size() -> None:
    """Nine shapes of blocks, as ResNet-50 has, and three sizes of images, of which one is validated on, too.

    Torch's own limit is 8 for all modules together, and what exceeds it runs without the compiler, in silence.
    """
    parts, sizes = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for width in range(1, 10)], (2, 3, 4)
    with fresh_dynamo() as counters:
        own = config.build({"recipe": "demo", "model": {"compile": True}})
        prepare_compiler(own.model, own.run, len(parts), sizes=len(sizes))
        for part in parts:
            part.compile(backend="eager", dynamic=False)
        for part, size in itertools.product(parts, sizes):
            part(torch.ones(size, part[0].in_features))
        with torch.no_grad():
            for part in parts:
                part(torch.ones(sizes[-1], part[0].in_features))
        assert counters["stats"]["unique_graphs"] == len(parts) * (len(sizes) + 1)


def test_programs_are_kept_in_the_run_if_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    for kept in (False, True):
        for name in names:
            monkeypatch.setenv(name, "elsewhere")
        own = config.build(
            {"recipe": "demo", "run": {"dir": str(tmp_path)}}, {"model": {"compile": True, "compile_cache": kept}}
        )
        with fresh_dynamo():
            prepare_compiler(own.model, own.run, 1, sizes=1)
        folder = tmp_path / "compiled"
        found = [os.environ[name] for name in names]
        assert found == ([str(folder), str(folder / "triton")] if kept else ["elsewhere"] * 2)


@pytest.mark.soak
def test_a_restart_finds_what_was_compiled(fleet: Fleet, tmp_path: Path) -> None:
    """Also where the folder that torch would use by itself is gone, as it is with a pod."""
    over: dict[str, Any] = {"model.compile": True, "model.compile_cache": True, "epochs": None}
    over["model.name"] = "little_models:least"
    found = []
    for start, steps in enumerate((2, 4)):
        (folder := tmp_path / f"pod-{start}").mkdir()
        env = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder)}
        found += counted(fleet, tmp_path / "run", 1, "inductor", env, max_steps=steps, **over)
        assert list(folder.iterdir()) == []
    first, second = (one["kept"] for one in found)
    assert first["miss"] > 0
    assert (second["hit"] > 0, second["miss"]) == (True, 0)
    assert [event["step"] for event in events(tmp_path / "run", "train")] == [1, 2, 3, 4]


def test_older_torch_keeps_graphs_with_checkpointed_blocks_whole() -> None:
    from torch._dynamo import config as dynamo

    with dynamo.patch(optimize_ddp=True):  # pytest's monkeypatch would delete it afterwards
        keep_graphs_whole(torch.__version__)
        assert dynamo.optimize_ddp is True
        keep_graphs_whole("2.11.0a0+git")
        assert dynamo.optimize_ddp is False


def test_garbage_is_collected_at_the_chosen_steps_alone(eager: tuple[Path, list[dict[str, Any]]]) -> None:
    found = eager[1]
    assert all(rank["deterministic"] for rank in found)
    steps = 2 * -(-TRAIN // 8)
    assert [rank["collected"] for rank in found] == [list(range(6, steps + 1, 6))] * 2
    assert all(rank["enabled"] for rank in found)


def test_sizes_of_a_whole_steps_forwards() -> None:
    def found(samples: int, batch: int, micro: int, world: int) -> list[list[int]]:
        base = {"data": {"dir": "synthetic"}, "epochs": 1, "batch": {"global": batch, "micro": micro}}
        plan = config.make_plan(config.build(base), "ddp", world)
        return [sorted(forward_sizes(Order(samples, batch, 1), plan, rank, world)) for rank in range(world)]

    assert found(58, 8, 0, 1) == [[8]]
    assert found(58, 8, 0, 3) == [[3], [3], [2]]
    assert found(58, 10, 4, 1) == [[3, 4]]
    assert found(5, 8, 0, 1) == [[5]]  # no step is whole: all are of this size


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"model": {"compile_mode": "max-autotune"}}, "model.compile_mode = 'max-autotune' with model.compile = False"),
        ({"model": {"compile_cache": True}}, "model.compile_cache = True with model.compile = False: nothing is"),
        (
            {"model": {"compile": True, "compile_mode": "reduce-overhead"}, "strategy": "fsdp"},
            "model.compile_mode = 'reduce-overhead' with strategy = 'fsdp': CUDA graphs need weights that stay",
        ),
        *(
            (
                {
                    "model": {"compile": True, "compile_mode": mode},
                    "strategy": kind,
                    "batch": {"global": 64, "micro": 8},
                },
                f"model.compile_mode = '{mode}' with 4 forwards per step (batch.micro = 8): CUDA graphs would",
            )
            for mode in ("reduce-overhead", "max-autotune")
            for kind in ("auto", "ddp")
        ),
        ({"precision": "tf32", "device": "cpu"}, "precision = 'tf32' with device = 'cpu': tf32 needs a GPU"),
    ],
)
def test_what_does_not_go_together_is_refused(over: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        config.make_plan(config.build({"recipe": "demo"}, over), "ddp", world=2)
    assert said in str(caught.value)


def test_one_forward_per_step_may_replay_cuda_graphs() -> None:
    model = {"compile": True, "compile_mode": "reduce-overhead"}
    for batch in ({"global": 64}, {"global": 64, "micro": 32}):
        assert (
            config.make_plan(config.build({"recipe": "demo"}, {"model": model, "batch": batch}), "ddp", 2).forwards == 1
        )
