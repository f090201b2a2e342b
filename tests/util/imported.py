"""What a training process imports: `python -m imported FOLDER`, in a process that has imported nothing else.

It does a whole run, then a step of DDP in a group of its own, and writes down what is imported; then it imports what
both have left out, and writes down whether it fits. All goes to FOLDER/found.json.
"""

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

from trainyard import config

MODEL = "shufflenet_v2_x0_5"
RUN = {
    "data": {"dir": "synthetic", "synthetic_samples": 8, "image_size": 32, "val_resize": 32, "workers": 1},
    "batch": {"global": 4}, "max_steps": 1, "device": "cpu", "model": {"name": MODEL}, "ema": {"decay": 0.9},
    "optimizer": {"clip_norm": 1.0},
}  # fmt: skip


def run(folder: Path) -> None:
    """One step and all that follows, as `python -m trainers.ddp` does it."""
    from trainyard.training import command

    (folder / "run.json").write_text(json.dumps({**RUN, "run": {"dir": str(folder / "run")}}))
    sys.argv = ["trainers.ddp", "--config", str(folder / "run.json")]
    assert command.main("trainers.ddp", "ddp", "") == 0


def stepped(wrapped: Any, optimizer: Any) -> list[Any]:
    """The weights after two steps."""
    import torch

    for step in (1, 2):
        wrapped(torch.full((2, 3, 8, 8), 0.1 * step)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [tensor.detach().clone() for tensor in wrapped.parameters()]


def distributed(folder: Path) -> tuple[Any, list[Any]]:
    """A model, and its weights after steps of our DDP, which also saves and loads."""
    import torch
    from little_models import Net

    from trainyard.parallel.ddp import Ddp
    from trainyard.parallel.environment import Place
    from trainyard.training import optimizer as optimizers

    settings = config.build({**RUN, "run": {"dir": str(folder)}})
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    strategy = Ddp(Place(), torch.device("cpu"), settings.comm, settings.ddp)
    torch.manual_seed(1)
    plain = Net(4)
    start = copy.deepcopy(plain)
    model = strategy.wrap(plain)
    optimizer = strategy.distribute(optimizers.build(plain, settings.optimizer), plain)
    weights = stepped(model, optimizer)
    strategy.load(plain, optimizer, strategy.full_state(plain, optimizer))
    return start, weights


def usual(start: Any) -> list[Any]:
    """The same by torch's own classes."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from trainyard.training.optimizer import parameter_groups

    settings = config.build({**RUN, "run": {"dir": "x"}}).optimizer
    wrapped = DistributedDataParallel(start)
    groups = parameter_groups(start, settings)
    return stepped(
        wrapped, torch.optim.SGD(groups, settings.lr, settings.momentum, nesterov=settings.nesterov, fused=True)
    )


def asked() -> dict[str, bool]:
    """What is answered for the compiler, and by it, while it is not imported."""
    import torch

    from trainyard.parallel import eager

    with eager.without_compiler():
        answer = torch._dynamo.utils.get_optimize_ddp_mode()
        imported = "torch._dynamo" in sys.modules
        real = torch._dynamo.utils.counters
    same = torch._dynamo.utils.get_optimize_ddp_mode() == answer
    return {"early": imported, "same": same, "own": real is sys.modules["torch._dynamo.utils"].counters}


def whole() -> dict[str, Any]:
    """All of torchvision, after one model of it, and what does not fit together."""
    from trainyard.models import factory, zoo

    alone = "torchvision" not in sys.modules
    other = zoo.get_model("efficientnet_b0")  # imports from torchvision.ops itself, so all of torchvision comes
    import torchvision

    models: Any = torchvision.models
    mine = type(factory.create(MODEL, 4))
    loaded = [name.rpartition(".") for name in sys.modules if name.startswith("torchvision.")]
    return {
        "all": alone and other is models.get_model,
        "unbound": [f"{package}.{name}" for package, _, name in loaded if not hasattr(sys.modules[package], name)],
        "same": mine is type(models.get_model(MODEL)) and mine is models.ShuffleNetV2,
        "elsewhere": [
            name for name in zoo.names()
            if f"torchvision.models.{zoo._file_of(name)}" != models.get_model_builder(name).__module__
        ],
    }  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    run(folder)
    start, weights = distributed(folder)
    modules = sorted(sys.modules)
    found: dict[str, Any] = {"modules": modules, "asked": asked()}
    found["alike"] = all(bool((a == b).all()) for a, b in zip(weights, usual(start), strict=True))
    found["torchvision"] = whole()
    (folder / "found.json").write_text(json.dumps(found))
    os._exit(0)


if __name__ == "__main__":
    main()
