"""Steps on a device that holds no numbers (torch's `meta`): nothing can be read from it, nor copied to the host.

On a GPU that would be a wait. Here torch raises, wherever in a step it happens; shapes and types are those of a GPU.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard import config
from trainyard.data.loader import Batch
from trainyard.data.prefetch import prefetch
from trainyard.data.transforms import normalizer
from trainyard.parallel.single import Single
from trainyard.training.loop import loss_of, train_step
from trainyard.training.pace import Pace
from trainyard.training.trainer import Progress, Trainer, build_learner, open_data

DEVICE = torch.device("meta")
# They change their arguments on a GPU; torch has no form of them that computes shapes alone
KERNELS = ("aten::_fused_sgd_", "aten::_fused_adamw_", "aten::_amp_foreach_non_finite_check_and_unscale_",
           "aten::_amp_update_scale_")  # fmt: skip


STEPS = 9  # of which the first epoch's six warm up
SMALL_DATA: dict[str, Any] = {"dir": "synthetic", "synthetic_samples": 48, "image_size": 16, "workers": 1}


class Kernels(TorchDispatchMode):
    """Notes kernels that change their arguments, and what they are told; LAMB's count of steps is on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[tuple[str, dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name.startswith(KERNELS):
            self.called.append((name, kwargs or {}))
            return args[0] if name.endswith("_update_scale_") else None
        if name in {"aten::_to_copy", "aten::copy_"}:
            refuse_copies_to_the_host(name, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def refuse_copies_to_the_host(name: str, args: Any, kwargs: dict[str, Any]) -> None:
    """Torch itself refuses most of them."""
    source, target = (args[0], kwargs.get("device")) if name == "aten::_to_copy" else (args[1], args[0].device)
    if source.device == DEVICE and target is not None and torch.device(target).type == "cpu":
        raise AssertionError(f"copied to the host: {name}")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    """Within a test, optimizers take the device for one that has fused kernels."""
    for name in ("sgd", "adam"):
        module = importlib.import_module(f"torch.optim.{name}")
        monkeypatch.setattr(module, "_device_dtype_check_for_fused", lambda *_, **__: None)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    with Kernels() as mode:
        yield mode


def built(folder: Path, **over: Any) -> Trainer:
    """What a step needs of a trainer whose strategy has the device."""
    base: dict[str, Any] = {
        "run": {"dir": str(folder / "run")}, "max_steps": 60, "batch": {"global": 8},
        "data": SMALL_DATA,
        "model": {"name": "little_models:net", "num_classes": 10}, "wandb": {"mode": "off"},
    }  # fmt: skip
    settings = config.build(base, over)
    plan = config.make_plan(settings, "ddp", 1)
    strategy = Single(DEVICE)
    data = open_data(settings, plan, strategy)
    learner = build_learner(settings, plan, strategy, data)
    records: Any = SimpleNamespace(writer=SimpleNamespace(settle=lambda: None))
    return Trainer(settings, plan, strategy, data, learner, records, Pace(None), {}, Progress())


def step(trainer: Trainer, steps: int) -> Tensor:
    """Do so many steps; their losses."""
    losses = []
    for _ in range(steps):
        ids = trainer.data.order.slice(trainer.progress.step, 0, 1)
        pictures = torch.empty(len(ids), 3, 16, 16, dtype=torch.uint8, device=DEVICE)
        losses.append(
            train_step(trainer, Batch(ids, pictures, torch.empty(len(ids), dtype=torch.int64, device=DEVICE)))
        )
        trainer.progress.step += 1
    return torch.stack(losses)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {}, "lamb": {"name": "lamb", "lr": 0.01}, "adamw": {"name": "adamw", "lr": 0.01},
    "clipped": {"clip_norm": 1.0}, "lamb, clipped": {"name": "lamb", "lr": 0.01, "clip_norm": 1.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("precision", "optimizer"), [("fp32", "sgd"), ("bf16", "clipped"), *(("fp16", name) for name in OPTIMIZERS)]
)
def test_steps_fetch_nothing(tmp_path: Path, kernels: Kernels, precision: str, optimizer: str) -> None:
    trainer = built(
        tmp_path,
        precision=precision,
        optimizer=OPTIMIZERS[optimizer],
        ema={"decay": 0.9},
        schedule={"warmup_epochs": 1},
    )
    assert step(trainer, STEPS).device == DEVICE
    fused = [told for name, told in kernels.called if name.startswith("aten::_fused")]
    assert len(fused) == (0 if "lamb" in optimizer else STEPS * 2), "two groups of parameters"
    assert all((told.get("found_inf") is not None) == (precision == "fp16") for told in fused)
    checked = [name for name, _ in kernels.called if name.startswith("aten::_amp_foreach")]
    assert len(checked) == (STEPS if precision == "fp16" else 0)


@pytest.mark.parametrize(
    "over",
    [
        {"augment": {"mixup": 0.2, "cutmix": 1.0}, "batch": {"global": 8, "micro": 4}},
        {"loss": {"name": "bce"}},
        {"data": {"synthetic_samples": 50}, "batch": {"global": 8, "micro": 2}},
    ],
    ids=["mixed and accumulated", "bce", "empty forwards"],
)  # fmt: skip
def test_modes_fetch_nothing_either(tmp_path: Path, kernels: Kernels, over: dict[str, Any]) -> None:
    assert step(built(tmp_path, precision="fp16", **over), 8).shape == (8,)


@pytest.mark.usefixtures("kernels")
def test_what_is_fetched_is_noticed() -> None:
    value = torch.ones(3, device=DEVICE)
    fetching: list[Callable[[], Any]] = [
        lambda: value.sum().item(), lambda: value[value > 0], value.nonzero, lambda: bool(value.any()),
        lambda: value.to("cpu", non_blocking=True), lambda: torch.empty(3).copy_(value), value.tolist,
    ]  # fmt: skip
    for fetch in fetching:
        with pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
            fetch()


def test_pictures_are_normalised_and_rounded_in_one_kernel() -> None:
    names: list[str] = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    pictures = torch.randint(0, 256, (4, 3, 9, 9), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    how = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], torch.device("cpu"), torch.float32
    whole, rounding = normalizer(*how), {kind: normalizer(*how, kind) for kind in (torch.bfloat16, torch.float16)}
    for kind, normalise in rounding.items():
        with Seen():
            found = normalise(pictures)
        assert names == ["aten::empty_like", "aten::addcmul"]
        names.clear()
        assert found.dtype == kind
        assert found.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(found.float(), whole(pictures), rtol=torch.finfo(kind).eps, atol=1e-6)


def test_losses_are_copied_once_and_waited_for_by_an_event() -> None:
    waited: list[str] = []
    event: Any = SimpleNamespace(synchronize=lambda: waited.append("event"))
    copies: list[tuple[Any, ...]] = []
    tensor: Any = SimpleNamespace(to=lambda *how, **more: copies.append((*how, more)) or "on the host")
    fetched = Pace(lambda: event).fetch(tensor)
    assert copies == [("cpu", {"non_blocking": True})]
    assert not waited
    assert fetched() == "on the host"
    assert waited == ["event"]
    here = torch.ones(2)
    assert Pace(None).fetch(here)() is here


class Stream:
    """A stream of the device, which notes in which order it is told what."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name, self.told = name, told

    def record_event(self) -> str:
        self.told.append(f"{self.name}: mark")
        return f"mark of {self.name}"

    def wait_event(self, event: str) -> None:
        self.told.append(f"{self.name}: wait for {event}")


def test_a_batch_is_copied_when_it_is_asked_for_and_none_waits_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    side, main = Stream("side", told), Stream("main", told)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: side)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext(told.append(f"on {stream.name}")))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    cuda = torch.device("cuda", 0)

    def part(name: str) -> Any:
        def to(device: torch.device, non_blocking: bool) -> Any:
            assert (device, non_blocking) == (cuda, True)
            told.append(f"copy {name}")
            return SimpleNamespace(record_stream=lambda stream: told.append(f"keep {name} for {stream.name}"))

        return SimpleNamespace(to=to)

    def loader() -> Iterator[Batch]:
        for number in range(2):
            told.append(f"draw {number}")
            yield Batch(np.array([number]), part(f"pictures {number}"), part(f"labels {number}"))

    batches = prefetch(loader(), cuda)
    for number in range(2):
        assert next(batches).ids[0] == number
        assert told == [
            f"draw {number}", "on side", f"copy pictures {number}", f"copy labels {number}", "side: mark",
            "main: wait for mark of side", f"keep pictures {number} for main", f"keep labels {number} for main",
        ]  # fmt: skip
        told.clear()
    assert list(batches) == []


def test_a_compiled_model_is_one_graph_each_way_and_stays_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it can then be replayed as CUDA graphs: no part runs between two graphs, none needs the host."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs: dict[str, list[torch.fx.Graph]] = {"forward": [], "backward": []}

    def noting(kind: str) -> Callable[..., Any]:
        def compiler(module: torch.fx.GraphModule, _: Any) -> Any:
            graphs[kind].append(module.graph)
            return make_boxed_func(module.forward)

        return compiler

    backend = aot_autograd(fw_compiler=noting("forward"), bw_compiler=noting("backward"))
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    model = {"name": "trainyard.models.small:resnet10", "num_classes": 10, "compile": True}
    trainer = built(tmp_path, model=model, data={**SMALL_DATA, "image_size": 32})
    pictures = torch.empty(8, 3, 32, 32, dtype=torch.uint8, device=DEVICE)
    for _ in range(2):
        loss_of(trainer, pictures, torch.empty(8, dtype=torch.int64, device=DEVICE)).backward()
    assert [len(found) for found in graphs.values()] == [1, 1]
    nodes = [node for found in graphs.values() for graph in found for node in graph.nodes]
    values = [node.meta["val"] for node in nodes if isinstance(node.meta.get("val"), Tensor)]
    assert {value.device for value in values} == {DEVICE}
    called = [str(node.target) for node in nodes if node.op == "call_function"]
    assert not [name for name in called if "local_scalar" in name or "nonzero" in name]
    layers = [module for module in trainer.learner.plain.modules() if isinstance(module, torch.nn.Conv2d)]
    assert sum(name == "aten.convolution.default" for name in called) == len(layers)
    assert sum(name == "aten.convolution_backward.default" for name in called) == len(layers)


def test_little_of_a_step_is_outside_of_what_a_graph_replays(tmp_path: Path, kernels: Kernels) -> None:
    """Of a ResNet-50: normalisation, loss, optimizer; each operation is a launch or more of the host."""
    model = {"name": "torchvision:resnet50", "num_classes": 1000}
    trainer = built(tmp_path, model=model, data={**SMALL_DATA, "image_size": 64}, precision="fp32")
    counted: list[str] = []

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            counted.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    step(trainer, 1)
    with Counts():
        step(trainer, 1)
    whole = len(counted)
    counted.clear()
    with Counts():
        trainer.learner.model(torch.empty(8, 3, 16, 16, device=DEVICE)).sum().backward()
    print(f"operations of a step: {whole}, outside of the model: {whole - len(counted)}")
    assert whole - len(counted) <= 40
