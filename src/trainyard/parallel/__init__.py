"""Strategies: ways of training on several processes, behind one small interface (base.py)."""

from typing import TYPE_CHECKING

from trainyard.config import Config, RunPlan
from trainyard.parallel.environment import Place, under_mpi, under_torchrun

if TYPE_CHECKING:  # torch is imported late: a start is located and counted before anything of it can crash
    from trainyard.parallel.base import Strategy


def locate(launcher: str) -> Place:
    """Get the rank of this process and the number of processes, from the launcher (`ddp`: torchrun, `horovod`: mpirun).

    Raises UserError where the environment is half set.
    """
    return under_mpi() if launcher == "horovod" else under_torchrun()


def connect(config: Config, plan: RunPlan, place: Place) -> "Strategy":
    """Join the other processes with the planned strategy; raises UserError where this machine cannot."""
    from trainyard.parallel.device import prepare_device

    device = prepare_device(
        config.device, config.precision, place, deterministic=config.deterministic, bind_cores=config.host.numa
    )
    if plan.strategy == "horovod":
        from trainyard.parallel.horovod import Horovod

        return Horovod(place, device, config.horovod, config.comm, plan.forwards)
    if plan.strategy == "exact":
        from trainyard.parallel.exact import ExactGroup, ExactSingle, SumSettings

        how = SumSettings(plan.forwards, config.comm, config.deterministic)
        return ExactSingle(device, how) if place.world == 1 else ExactGroup(place, device, how)
    if place.world == 1:
        from trainyard.parallel.single import Single

        return Single(device, plan.strategy)
    if plan.strategy == "fsdp":
        from trainyard.parallel.fsdp import Fsdp

        options = config.model.compile_options
        return Fsdp(place, device, config.comm, config.fsdp, precision=config.precision, compile_options=options)
    from trainyard.parallel.ddp import Ddp

    return Ddp(place, device, config.comm, config.ddp)
