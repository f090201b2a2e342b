"""Strategies: ways of training on several processes, behind one small interface (base.py)."""

from typing import TYPE_CHECKING

from trainers.config import Config, Plan
from trainers.exits import UserError
from trainers.parallel.environment import Place, under_mpi, under_torchrun

if TYPE_CHECKING:  # torch is imported late: a start is located and counted before anything of it can crash
    import torch

    from trainers.parallel.base import Strategy


def locate(launcher: str) -> Place:
    """The rank of this process and the number of processes, from the launcher (`ddp`: torchrun, `horovod`: mpirun).

    Raises UserError where the environment is half set.
    """
    return under_mpi() if launcher == "horovod" else under_torchrun()


def connect(config: Config, plan: Plan, place: Place) -> "Strategy":
    """Join the other processes with the planned strategy; raises UserError where this machine cannot."""
    device = choose_device(config.device, place)
    if plan.strategy == "horovod":
        from trainers.parallel.horovod import Horovod

        return Horovod(place, device, config.horovod, config.comm, plan.forwards)
    if place.world == 1:
        from trainers.parallel.single import Single

        return Single(device, plan.strategy)
    if plan.strategy == "fsdp":
        from trainers.parallel.fsdp import Fsdp

        return Fsdp(place, device, config)
    from trainers.parallel.ddp import Ddp

    return Ddp(place, device, config.comm, config.ddp)


def choose_device(wanted: str, place: Place) -> "torch.device":
    """The device of this process: its own GPU, or the CPU; raises UserError where GPUs are too few."""
    import torch

    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count < place.local_world:
        raise UserError(
            f"device = {wanted!r}: {place.local_world} processes on this node but {count} usable GPUs; "
            "start as many processes per node as there are GPUs, or set device to cpu"
        )
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True  # sizes stay the same, so trying convolution algorithms once pays
    return device
