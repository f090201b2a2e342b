"""Strategy `exact`: the same bits on 1, 2 and 4 processes, and what its sums rest on.

What rounds differently elsewhere is tried here, too: a convolution's gradient over a batch and over its pieces.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import events
from fleet import Fleet
from inside_ranks import settings
from safetensors.torch import load_file
from torch import Tensor, nn

from trainyard import config
from trainyard.core.exits import UserError
from trainyard.data.sampler import Order
from trainyard.parallel.exact import ExactSingle, SumSettings
from trainyard.parallel.pairs import Tree, in_pairs

pytestmark = [pytest.mark.takes(12), pytest.mark.ranks(4)]

STEPS = 18  # two epochs and a bit
# fp32, where any other order shows at once; dropout draws by piece; ragged batches leave pieces of 1 sample and of none
EXACT = {
    "strategy": "exact", "precision": "fp32", "model.batch_norm": "local", "batch.micro": 2, "augment.mixup": 0.2,
    "max_steps": STEPS, "epochs": None, "checkpoint.every_steps": 0, "validate.every_epochs": 0, "optimizer.lr": 0.5,
    "optimizer.clip_norm": 1.0, "ema.decay": 0.9,
}  # fmt: skip


def test_losses_and_weights_are_equal_bit_by_bit(fleet: Fleet, tmp_path: Path) -> None:
    def runs(name: str, **over: Any) -> dict[int, Path]:
        return {world: fleet.train(tmp_path / f"{name}-{world}", world, **{**EXACT, **over}) for world in (1, 2, 4)}

    for name, over in (
        ("batch-norm", {"model.name": "little_models:strict_blocks"}),  # refuses a batch of none
        ("dropout", {"model.name": "little_models:dropout", "comm.gradients": "fp64"}),
    ):
        found = runs(name, **over)
        lines = {world: [event["loss"] for event in events(run, "train")] for world, run in found.items()}
        assert len(set(lines[1])) == STEPS
        assert lines[1] == lines[2] == lines[4]
        state, *others = (load_file(saved(found[world])) for world in (1, 2, 4))
        assert all(torch.equal(state[key], other[key]) for other in others for key in state)
        orders = [order(run, world) for world, run in found.items()]
        assert orders[0] == orders[1] == orders[2]


def saved(run: Path) -> Path:
    """The model's tensors, statistics among them, after the last step."""
    return run / "checkpoints" / f"step-{STEPS:08}" / "model.safetensors"


def order(run: Path, world: int) -> list[list[int]]:
    """Sample ids of each step, over all ranks in their order."""
    ranks = [(run / "samples" / f"rank-{rank}.jsonl").read_text().splitlines() for rank in range(world)]
    return [[i for line in step for i in json.loads(line)["sample_ids"]] for step in zip(*ranks, strict=True)]


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_a_tree_is_the_same_in_branches(count: int) -> None:
    parts = list(torch.randn(count, 1000))
    whole = in_pairs(parts)
    for branches in (1, 2, 4, 8, 16)[: count.bit_length()]:
        sums = []
        for branch in np.array_split(np.arange(count), branches):
            tree = Tree()
            for index in branch:
                tree.add(parts[index])
            sums.append(tree.take())
        assert torch.equal(in_pairs(sums), whole)
    if count > 2:
        assert not torch.equal(sum(parts[1:], parts[0]), whole)


@pytest.mark.parametrize("samples", range(1, 33))
@pytest.mark.parametrize("unit", [1, 2])
def test_pieces_are_the_same_on_any_number_of_processes(samples: int, unit: int) -> None:
    """All sizes of a last batch: its forwards have the same samples, wherever they are computed."""
    batches = Order(samples, 32, 3, unit, pieces=8)

    def forwards(world: int) -> list[list[int]]:
        shares = [batches.slice(0, rank, world) for rank in range(world)]
        return [share[part].tolist() for share in shares for part in batches.parts(len(share), 8 // world)]

    assert forwards(1) == forwards(2) == forwards(4) == forwards(8)
    assert [i for piece in forwards(4) for i in piece] == batches.global_batch(0).tolist()


def test_where_rounding_differs_between_numbers_of_processes() -> None:
    """A convolution treats samples one by one, and sums its weights' gradient over a batch in an order of its own."""
    generator = torch.Generator().manual_seed(3)
    layer = nn.Conv2d(3, 16, 5, padding=2, bias=False).double()
    pictures = torch.randn(24, 3, 16, 16, generator=generator, dtype=torch.float64)
    outer = torch.randn(24, 16, 16, 16, generator=generator, dtype=torch.float64)

    def passed(part: slice) -> tuple[Tensor, Tensor, Tensor]:
        inputs = pictures[part].clone().requires_grad_()
        layer.zero_grad()
        outputs = layer(inputs)
        outputs.backward(outer[part])
        assert inputs.grad is not None
        assert layer.weight.grad is not None
        return outputs.detach(), inputs.grad, layer.weight.grad.clone()

    outputs, inputs, weights = passed(slice(0, 24))
    pieces = [passed(slice(start, start + 6)) for start in range(0, 24, 6)]
    assert torch.equal(outputs, torch.cat([piece[0] for piece in pieces]))
    assert torch.equal(inputs, torch.cat([piece[1] for piece in pieces]))
    in_order = sum((piece[2] for piece in pieces[1:]), pieces[0][2])
    unit = torch.finfo(torch.float64).eps * float(weights.abs().max())
    by_order, by_kernel = (
        float((one - in_pairs([piece[2] for piece in pieces])).abs().max()) for one in (in_order, weights)
    )
    assert 0 < by_order <= 2 * unit
    assert 0 < by_kernel <= 64 * unit


@pytest.mark.parametrize(
    ("world", "over", "words"),
    [
        (2, {"batch.micro": 0}, r"batch.global = 8, batch.micro = 0 .*set both"),
        (2, {"batch.global": 12}, r"batch.global = 12, batch.micro = 2 .*1, 2, 4, 8"),
        (3, {}, r"on 3 processes: it needs a power of two"),
        (8, {}, r"on 8 processes: .* no more than the 4 forwards"),
        (2, {"batch.micro": 1, "augment.mixup": 0.0}, ""),
        (2, {"model.batch_norm": "global"}, r"model.batch_norm = 'global' .*set model.batch_norm to local"),
        (2, {"model.compile": True}, r"model.compile = True .*to False"),
        (2, {"comm.compression": "bf16"}, r"comm.compression = 'bf16' .*to none"),
    ],
)
def test_what_cannot_be_exact_is_refused(world: int, over: dict[str, Any], words: str) -> None:
    found = settings(**{"strategy": "exact", "batch.micro": 2, **over})
    if not words:
        assert config.make_plan(found, "ddp", world).forwards == 4
        return
    with pytest.raises(UserError, match=words):
        config.make_plan(found, "ddp", world)


def test_a_gpu_must_be_deterministic_and_a_parameter_in_use() -> None:
    found = settings(**{"strategy": "exact", "batch.micro": 2})
    plan = config.make_plan(found, "ddp", 1)
    with pytest.raises(UserError, match="deterministic = False: a GPU may add in any order"):
        ExactSingle(torch.device("cuda"), SumSettings(plan.forwards, found.comm, found.deterministic))
    strategy = ExactSingle(torch.device("cpu"), SumSettings(plan.forwards, found.comm, found.deterministic))
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    strategy.wrap(model)
    with pytest.raises(UserError, match=r"unused.weight has no gradient in this step; name it in model.freeze"), \
            strategy.accumulating(model):  # fmt: skip
        model["used"](torch.zeros(1, 2)).sum().backward()
