"""Ways of training on several processes, behind one small interface (base.py)."""

import torch

from trainers.config import parallel_rules
from trainers.config.settings import Config
from trainers.exits import UserError
from trainers.parallel.base import Strategy
from trainers.parallel.environment import Place, under_mpi, under_torchrun


def locate(config: Config, entry: str) -> Place:
    """Where this process stands, by the launcher that belongs to the entry point (`ddp` or `horovod`)."""
    wanted = {"ddp": ("auto", "ddp", "fsdp", "single"), "horovod": ("auto", "horovod")}[entry]
    if config.strategy not in wanted:
        program = {"ddp": "trainers.ddp", "horovod": "trainers.hvd"}[entry]
        other = {"ddp": "trainers.hvd", "horovod": "trainers.ddp"}[entry]
        raise UserError(
            f"strategy = {config.strategy!r}: {program} knows {', '.join(wanted)}; change it, or run {other}"
        )
    place = under_mpi() if entry == "horovod" else under_torchrun()
    if config.strategy == "single" and place.world > 1:
        raise UserError(f"strategy = 'single': this run has {place.world} processes; use strategy ddp, or one process")
    return place


def connect(config: Config, entry: str, place: Place, accumulation: int) -> Strategy:
    """Join the other processes; `accumulation` is the number of forwards per step."""
    name = strategy_name(config, entry, place)
    parallel_rules.check_world(config, name, place.world, accumulation)
    device = choose_device(config, place)
    if entry == "horovod":
        from trainers.parallel.horovod import Horovod

        return Horovod(place, device, config.horovod, config.comm, accumulation)
    if name == "fsdp" and place.world > 1:
        from trainers.parallel.fsdp import Fsdp

        return Fsdp(place, device, config)
    if place.world > 1:
        from trainers.parallel.ddp import Ddp

        return Ddp(place, device, config.comm, config.ddp)
    from trainers.parallel.single import Single

    return Single(device, name)


def strategy_name(config: Config, entry: str, place: Place) -> str:
    """The strategy that `auto` stands for; one that was asked for keeps its name on a single process."""
    if entry == "horovod":
        return "horovod"
    return config.strategy if config.strategy != "auto" else "ddp" if place.world > 1 else "single"


def choose_device(config: Config, place: Place) -> torch.device:
    """The device of this process: its own GPU, or the CPU."""
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count < place.local_world:
        raise UserError(
            f"device = {config.device!r}: {place.local_world} processes on this node but {count} usable GPUs; "
            "start as many processes per node as there are GPUs, or set device to cpu"
        )
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True  # sizes stay the same: try once which convolution is the fastest for each
    return device
