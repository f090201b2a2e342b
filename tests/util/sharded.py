"""Run by test_optim on two processes, as under torchrun: on shards, all does as on whole tensors."""

import copy
import os

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from trainyard.config.sections.learning import EmaSettings, OptimizerSettings
from trainyard.data.sampler import Length
from trainyard.parallel.base import clip
from trainyard.training import optimizer as optimizers
from trainyard.training.ema import Ema


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def compare(name: str, world: int) -> None:
    settings = OptimizerSettings(name=name, lr=0.05, weight_decay=0.1, no_decay=["bias"])  # type: ignore[arg-type]
    torch.manual_seed(5)
    plain = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).double()  # 5 x 7 does not split evenly
    sharded = copy.deepcopy(plain)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (world,)))
    assert any(full(p).shape != p.to_local().shape for p in sharded.parameters() if isinstance(p, DTensor))
    both = [optimizers.build(model, settings) for model in (plain, sharded)]
    averages = [
        Ema(model, EmaSettings(decay=0.9), batch=4, length=Length(6, 3), warmup_epochs=0) for model in (plain, sharded)
    ]
    for step in range(6):
        pictures = torch.randn(8, 5, dtype=torch.float64)
        for model, optimizer, average in zip((plain, sharded), both, averages, strict=True):
            model(pictures).pow(4).mean().backward()
            clip(optimizer, 0.5)
            gradients = torch.cat([full(p.grad).flatten() for p in model.parameters() if p.grad is not None])
            assert float(gradients.norm()) <= 0.5 + 1e-9
            optimizer.step()
            optimizer.zero_grad()
            average.update(step)
    for (key, a), b in zip(plain.named_parameters(), sharded.parameters(), strict=True):
        torch.testing.assert_close(full(b.detach()), a.detach(), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(full(averages[1].state_dict()[key]), averages[0].state_dict()[key])
    own = {key: value.clone() for key, value in sharded.state_dict().items()}
    loaded = {key: value + 1 for key, value in averages[0].state_dict().items()}
    set_model_state_dict(sharded, loaded, options=StateDictOptions(full_state_dict=True, strict=False))
    averages[1].restart()
    sharded.load_state_dict(own)
    with averages[1].applied():
        for (key, _), b in zip(plain.named_parameters(), sharded.parameters(), strict=True):
            torch.testing.assert_close(full(b.detach()), averages[0].state_dict()[key] + 1)


def main() -> None:
    torch.distributed.init_process_group("gloo")
    for name in ("sgd", "adamw", "lamb"):
        compare(name, torch.distributed.get_world_size())
    torch.distributed.destroy_process_group()
    os._exit(0)  # as entry points do


if __name__ == "__main__":
    main()
