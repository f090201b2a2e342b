"""Forwards without samples, in a small last batch: the model sees a blank one, and nothing of it counts."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TRAIN, events
from fleet import Fleet
from little_models import Blocks, refuse_none
from torch import Tensor, nn

from trainyard import config
from trainyard.data.sampler import Order
from trainyard.models.batch_norm import counting_nothing, counts_nothing, replace_batch_norm
from trainyard.training.trainer import checkpoint_blocks

pytestmark = [pytest.mark.takes(15), pytest.mark.ranks(2)]
SHORT: dict[str, Any] = {"max_steps": -(-TRAIN // 8) + 1, "epochs": None, "checkpoint.every_steps": 0}


def one(total: Any, again: bool) -> nn.Module:
    torch.manual_seed(1)
    model = Blocks(4)
    replace_batch_norm(model, total)
    if again:
        checkpoint_blocks(model)
    return model


@pytest.mark.parametrize("again", [False, True], ids=["kept", "computed again"])
@pytest.mark.parametrize("kind", ["local", "global"])
def test_a_blank_sample_changes_no_statistics_and_no_sum(kind: str, again: bool) -> None:
    """Global BatchNorm takes part in the sums over processes, forward and backward, and adds nothing to them."""
    sums: list[Tensor] = []

    def total(tensor: Tensor) -> Tensor:
        sums.append(tensor.clone())
        return tensor.clone()

    model = one(total if kind == "global" else None, again)
    before = copy.deepcopy(dict(model.named_buffers()))
    with counting_nothing():
        loss = 0.0 * model(torch.full((1, 3, 16, 16), 3.0)).sum()
    assert not counts_nothing()
    loss.backward()
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert all(part.grad is not None and not part.grad.any() for part in model.parameters())
    assert not any(part.any() for part in sums)
    assert len(sums) == (0 if kind == "local" else 3 * (6 if again else 4)), "as many sums as with samples"
    sums.clear()
    model(torch.randn(2, 3, 16, 16)).sum().backward()
    assert len(sums) == (0 if kind == "local" else 3 * (6 if again else 4))


def test_the_tail_of_this_data_leaves_forwards_without_samples() -> None:
    order = Order(TRAIN, 8, 1)
    assert [len(order.slice(TRAIN // 8, rank, 4)) for rank in range(4)] == [1, 1, 0, 0]
    assert [part.stop - part.start for part in order.parts(2, 4)] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    "over",
    [
        {"strategy": "fsdp", "model.checkpointing": True},
        {"strategy": "ddp", "precision": "bf16", "model.batch_norm": "local"},
    ],
)
def test_a_model_that_refuses_a_batch_of_none_is_trained(fleet: Fleet, tmp_path: Path, over: dict[str, Any]) -> None:
    """On four processes; strategy `exact` (test_exact.py) and forwards of one process (below) meet it, too."""
    run = fleet.train(tmp_path / "run", 4, **{**SHORT, **over, "model.name": "little_models:strict_blocks"})
    assert len(events(run, "train")) == SHORT["max_steps"]
    with pytest.raises(RuntimeError, match="batch size must be positive"):
        refuse_none(nn.Identity(), (torch.zeros(0, 3),))


def test_one_process_meets_it_too_and_compiles_no_such_forward(fleet: Fleet, tmp_path: Path) -> None:
    """A forward that counts nothing is never compiled, also where each step has one."""
    from trainyard.training.compiled import compiled_or_eager

    base = {"data": {"dir": "synthetic"}, "epochs": 1, "batch": {"global": 8}, "model": {"compile": True}}
    settings = config.build(base)
    with compiled_or_eager(settings.model.compile, 0, frozenset([0, 2])):
        stance: Any = torch._dynamo.eval_frame._stance
        assert stance.stance == "force_eager"
    same = {**SHORT, "batch.micro": 2, "precision": "fp32", "model.batch_norm": "local"}
    env = {"COUNTED": str(tmp_path), "COMPILER": "eager"}
    over = {**same, "model.name": "little_models:strict_blocks", "model.compile": True}
    fleet.trainer.forker.load("torch._dynamo.utils")  # which is more than the run
    codes, output = fleet.wait(fleet.start(tmp_path / "run", 1, "counted", env, **over))
    assert codes == [0], output
    eager = fleet.train(tmp_path / "eager", 1, **{**over, "model.compile": False})
    pairs = zip(events(tmp_path / "run", "train"), events(eager, "train"), strict=True)
    assert all(a["loss"] == pytest.approx(b["loss"], rel=1e-3) for a, b in pairs)
