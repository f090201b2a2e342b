"""What tests do inside a group of processes: `python -m inside_ranks CASE RESULTS ...`, started as ranks.

Each case works with a real strategy and returns what its rank saw; it is written to RESULTS/RANK.json.
"""

import contextlib
import ctypes
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from little_models import Blocks, Net, memory
from torch import Tensor, nn

from trainyard import config, parallel
from trainyard.config import Config
from trainyard.core.exits import ExitError
from trainyard.models.batch_norm import replace_batch_norm
from trainyard.parallel import fsdp, probe
from trainyard.parallel.base import Strategy
from trainyard.training import optimizer as optimizers

LATE = 0.5  # seconds that the late rank waits before an exchange, far longer than all others
USUAL = 0.05  # what all others wait: other work on these cores, which delays some by 10 ms, is little beside it
WIDTH = 1024  # of 8 layers, 32 MiB in all
M_MMAP_THRESHOLD = -3


def settings(**over: Any) -> Config:
    base = {"data.dir": "synthetic", "max_steps": 1, "batch.global": 8, "device": "cpu", "optimizer.lr": 0.05}
    layers = [config.parse_override(f"{key}={json.dumps(value)}") for key, value in {**base, **over}.items()]
    return config.build(*layers)


class Training:
    """A model under a strategy, and steps on random numbers that are the same on every number of processes."""

    def __init__(self, plain: nn.Module, forwards: int = 1, **over: Any) -> None:
        self.settings = settings(**over)
        entry = "horovod" if self.settings.strategy == "horovod" else "ddp"
        place = parallel.locate(entry)
        plan = replace(config.make_plan(self.settings, entry, place.world), forwards=forwards)
        self.strategy: Strategy = parallel.connect(self.settings, plan, place)
        if self.settings.model.channels_last:
            plain.to(memory_format=torch.channels_last)
        self.forwards, self.plain = forwards, plain
        compiled: Any = torch.compile(plain) if self.settings.model.compile else plain
        self.model = self.strategy.wrap(compiled)
        self.optimizer = self.strategy.distribute(optimizers.build(plain, self.settings.optimizer), plain)
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)
        self.generator = torch.Generator().manual_seed(7)

    def backward(self, shape: tuple[int, ...] = (8, 3, 9, 9), slow: float = 0.0) -> Tensor:
        """Forwards and backwards of a step; this process's loss."""
        dtype = next(self.plain.parameters()).dtype
        batch = torch.randn(shape, generator=self.generator).to(dtype)
        mine = batch.tensor_split(self.strategy.world)[self.strategy.rank]
        time.sleep(slow)
        total = torch.zeros((), dtype=dtype)
        for index, part in enumerate(mine.tensor_split(self.forwards)):
            last = index == self.forwards - 1
            with contextlib.nullcontext() if last else self.strategy.accumulating(self.model):
                loss = self.model(part).square().sum()
                (loss * self.strategy.loss_weight(len(mine), len(batch))).backward()
            total += loss.detach()
        return total

    def step(self, clip: float = 0.0, **how: Any) -> float:
        loss = self.backward(**how)
        self.strategy.step(self.optimizer, self.scaler, clip)
        self.optimizer.zero_grad()
        return float(self.strategy.sum(loss))

    def gradients(self) -> list[Tensor]:
        found = {name: p.grad for name, p in self.plain.named_parameters() if p.grad is not None}
        return [tensor.clone() for tensor in self.strategy.full_tensors(found).values()]


def net(dtype: torch.dtype = torch.float32, norm: bool = False) -> nn.Module:
    torch.manual_seed(3)
    return Net(5, norm).to(dtype)


def collectives(kind: str, forwards: str) -> dict[str, int]:
    """How often what is called in a step of so many forwards, from the profiler's record."""
    plain = net(norm=True)
    replace_batch_norm(plain, None)
    training = Training(plain, int(forwards), strategy=kind)
    for _ in range(2):
        training.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        training.backward()
    calls = Counter(event.key for event in profile.events() if event.key.startswith("c10d::"))
    training.strategy.close()
    return dict(calls)


def gradients(kind: str, **over: Any) -> dict[str, Any]:
    """Gradients of one backward, as numbers, and whether bf16 or fp16 holds them without loss."""
    training = Training(net(), strategy=kind, **over)
    training.backward()
    if kind == "horovod":
        training.optimizer.synchronize()  # type: ignore[attr-defined]
    found = training.gradients()
    flat = torch.cat([tensor.flatten() for tensor in found]) if found else torch.zeros(0)
    training.strategy.close()
    exact = {name: bool((flat.to(kind).float() == flat).all()) for name, kind in FORMATS.items()}
    return {"values": flat.tolist(), "exact": exact}


FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def losses(kind: str, forwards: str, clip: str, **over: Any) -> list[float]:
    """Losses of steps with a model of blocks, in fp64."""
    torch.manual_seed(3)
    plain = Blocks(5, norm=False).to(torch.float32 if over.get("precision") == "fp32" else torch.float64)
    training = Training(plain, int(forwards), **{"strategy": kind, "precision": "fp64", **over})
    found = [training.step(float(clip)) for _ in range(6)]
    training.strategy.close()
    return found


def exposed(kind: str, sleep: str) -> dict[str, float]:
    """Seconds exposed in steps without and with a second rank that sleeps so long; the least of some rounds.

    A busy machine makes ranks wait for each other, too, which only adds to it.
    """
    training = Training(net(), strategy=kind)
    for _ in range(3):
        training.step()
    training.strategy.barrier()
    training.strategy.exposed_seconds()
    found = []
    for slow in (0.0, float(sleep)) * 3:
        for _ in range(3):
            training.step(slow=slow if training.strategy.rank == 1 else 0.0)
        found.append(training.strategy.exposed_seconds())
    training.strategy.barrier()
    training.strategy.close()
    return {"even": min(found[::2]), "slowed": min(found[1::2])}


def sleeps(kind: str) -> int:
    """How often this rank's thread slept while it waited a second for the other one."""
    training = Training(net(), strategy=kind)
    training.strategy.barrier()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    if training.strategy.rank == 1:
        time.sleep(1)
    training.strategy.sum(torch.ones(1))
    slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
    training.strategy.close()
    return slept


def stopped(kind: str) -> float:
    """The share of a core that this process takes while rank 1 is stopped for a second."""
    training = Training(net(), strategy=kind)
    training.strategy.barrier()
    before, began = time.process_time(), time.monotonic()
    if training.strategy.rank == 1:
        subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    training.strategy.sum(torch.ones(1))
    share = (time.process_time() - before) / (time.monotonic() - began)
    training.strategy.close()
    return share


def unused(**over: Any) -> str:
    """Steps with an unused parameter: the error, if any."""
    plain = net()
    plain.register_parameter("idle", nn.Parameter(torch.ones(3)))
    training = Training(plain, strategy="ddp", **over)
    try:
        for _ in range(3):
            training.step()
    except RuntimeError as error:
        return str(error)
    return ""


def probed(kind: str, slow: str, pace: str, nodes: str = "yes", **over: Any) -> dict[str, str]:
    """What the probe of the transport prints and raises; the rank `slow` begins each exchange late.

    The seconds of all are multiplied by this machine's `pace`.
    """
    chosen = settings(strategy=kind, **{"comm.probe": "always", **over})
    place = parallel.locate("ddp")
    place = replace(place, local_rank=0, local_world=1) if nodes == "yes" else place
    strategy = parallel.connect(chosen, config.make_plan(chosen, "ddp", place.world), place)
    original = probe.dist.batch_isend_irecv
    probe.REPEATS = 6  # other work on these cores delays some, and must not delay all of them

    def delayed(operations: Any) -> Any:
        time.sleep(float(pace) * (LATE if place.rank == int(slow) else USUAL))
        return original(operations)

    probe.dist.batch_isend_irecv = delayed
    said, error = io.StringIO(), ""
    with contextlib.redirect_stdout(said):
        try:
            probe.check(chosen.comm, strategy)
        except ExitError as caught:
            error = f"{caught.code} {caught}"
    strategy.barrier()
    strategy.close()
    return {"said": said.getvalue(), "error": error}


def parts() -> dict[str, int]:
    """Bytes of weights, gradients and momentum that a rank keeps, and the most memory that it ever had, in MiB."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)  # so that what is given back is given back at once
    before = memory("VmRSS")
    torch.manual_seed(3)
    training = Training(nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(8)]), strategy="fsdp")
    for _ in range(2):
        training.step(shape=(8, WIDTH))
    kept: list[Any] = [*training.plain.parameters()]
    kept += [state["momentum_buffer"] for state in training.optimizer.state.values()]
    local = [getattr(tensor, "to_local", lambda tensor=tensor: tensor)() for tensor in kept]
    training.strategy.barrier()
    training.strategy.close()
    return {
        "kept": sum(tensor.untyped_storage().nbytes() for tensor in local) >> 20,
        "most": (memory("VmHWM") - before) >> 10,
    }


def mixed() -> dict[str, Any]:
    """FSDP in bf16: where, what is kept, what is computed with, and whether it learns, BatchNorm and all."""
    meshes: set[str] = set()
    fully_shard = fsdp.fully_shard

    def noted(module: nn.Module, mesh: Any = None, **how: Any) -> Any:
        meshes.add(f"{mesh.device_type} {mesh.size()}" if mesh else "torch's choice")
        return fully_shard(module, mesh=mesh, **how)

    fsdp.fully_shard = noted  # type: ignore[assignment]
    torch.manual_seed(3)
    plain = Blocks(5)
    replace_batch_norm(plain, None)
    seen: list[str] = []
    plain.fc.register_forward_pre_hook(lambda module, _: seen.append(str(module.weight.dtype)))
    training = Training(plain, strategy="fsdp", precision="bf16")
    with torch.autocast("cpu", torch.bfloat16):
        found = [training.step() for _ in range(4)]
    kept = sorted({str(parameter.dtype) for parameter in plain.parameters()})
    training.strategy.close()
    return {"losses": found, "kept": kept, "computed": sorted(set(seen)), "meshes": [*meshes]}


def main() -> None:
    case, results, *arguments = sys.argv[1:]
    plain = [text for text in arguments if "=" not in text]
    over = {key: json.loads(value) for key, value in (text.split("=", 1) for text in arguments if "=" in text)}
    found = globals()[case](*plain, **over)
    rank = os.environ.get("RANK") or os.environ.get("HOROVOD_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
    (Path(results) / f"{rank}.json").write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
