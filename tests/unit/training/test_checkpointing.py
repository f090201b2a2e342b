"""Gradient checkpointing: the same gradients and statistics to the bit, from fewer activations that are kept."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import events
from fleet import Fleet
from little_models import Blocks
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from trainyard.core.exits import UserError
from trainyard.models.batch_norm import replace_batch_norm
from trainyard.training.trainer import checkpoint_blocks

pytestmark = [pytest.mark.takes(15), pytest.mark.ranks(2)]


def both(total: Any = None) -> tuple[nn.Module, nn.Module]:
    """A model, and one that computes its blocks again."""
    torch.manual_seed(1)
    model = Blocks(4)
    for block in (model.stages[0], *model.stages[1]):  # type: ignore[misc]
        block.norm = nn.Sequential(block.norm, nn.Dropout(0.3))
    again = copy.deepcopy(model)
    for one in (model, again):
        replace_batch_norm(one, total)
    checkpoint_blocks(again)
    return model, again


def kept(model: nn.Module, pictures: Tensor) -> int:
    """Bytes that a forward keeps for backward; takes both."""
    total = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal total
        total += tensor.nbytes
        return tensor

    torch.manual_seed(2)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(pictures).square().sum()
    held = total
    loss.backward()
    return held


@pytest.mark.parametrize("total", [None, lambda tensor: tensor.clone()], ids=["local", "global"])
def test_same_gradients_and_statistics_to_the_bit(total: Any) -> None:
    model, again = both(total)
    pictures = torch.randn(6, 3, 16, 16)
    assert kept(again, pictures) < 0.4 * kept(model, pictures)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert one.grad is not None
        assert torch.equal(one.grad, other.grad)
    states = model.state_dict(), again.state_dict()
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    model.eval(), again.eval()
    with torch.no_grad():
        assert torch.equal(model(pictures), again(pictures))


def test_compiled_too() -> None:
    model, again = both()
    for one in (model, again):
        for module in one.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0  # a compiled one draws other numbers
    compiled: Any = torch.compile(again, backend="aot_eager", dynamic=False)
    pictures = torch.randn(6, 3, 16, 16)
    for one in (model, compiled):
        one(pictures).square().sum().backward()
    for first, second in zip(model.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(first.grad, second.grad, rtol=1e-4, atol=1e-4)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], tensor)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_through_the_engine(fleet: Fleet, tmp_path: Path, kind: str) -> None:
    short = {
        "model.name": "little_models:blocks",
        "max_steps": 9,
        "epochs": None,
        "strategy": kind,
        "validate.every_epochs": 0,
    }
    plain = fleet.train(tmp_path / "plain", 2, **short)
    again = fleet.train(tmp_path / "again", 2, **short, **{"model.checkpointing": True})
    one, other = ([event["loss"] for event in events(run, "train")] for run in (plain, again))
    assert one == other


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(UserError, match=r"model.checkpointing = True: this model has no blocks"):
        checkpoint_blocks(nn.Linear(2, 2))
