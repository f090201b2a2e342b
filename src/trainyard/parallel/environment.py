"""Rank and number of processes: the one place that reads the variables that launchers set.

A half-set environment is an error. It is always a mistake, and guessing would train something else.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from trainyard.core.exits import UserError

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
OPENMPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
HOROVODRUN = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")


@dataclass(frozen=True)
class Place:
    """Rank and number of processes, in all and on this node."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1


def under_torchrun(environ: Mapping[str, str] = os.environ) -> Place:
    """Read what torchrun and `trainyard launch` set; nothing set: a single process. Raises UserError."""
    return _read(environ, TORCHRUN, "start it with `trainyard launch -m trainers.ddp ...`") or Place()


def under_mpi(environ: Mapping[str, str] = os.environ) -> Place:
    """Read what mpirun or horovodrun set; nothing set: a single process. Raises UserError."""
    remedy = "start it with `mpirun -np N python -m trainers.hvd ...` or `horovodrun -np N ...`"
    return _read(environ, HOROVODRUN, remedy) or _read(environ, OPENMPI, remedy) or Place()


def restart_count(environ: Mapping[str, str] = os.environ) -> int:
    """How often torchrun has restarted this process in place."""
    return int(environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def on_terminal(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the output is a terminal; mpirun's ranks have a pseudo-terminal that nobody watches."""
    return sys.stdout.isatty() and OPENMPI[0] not in environ


def _read(environ: Mapping[str, str], names: tuple[str, ...], remedy: str) -> Place | None:
    missing = [name for name in names if not environ.get(name)]
    if len(missing) == len(names):
        return None
    if missing:
        present = [name for name in names if name not in missing]
        raise UserError(f"the environment is half set: {', '.join(present)} but not {', '.join(missing)}; {remedy}")
    try:
        place = Place(*(int(environ[name]) for name in names[:4]))
    except ValueError:
        values = ", ".join(f"{name}={environ[name]!r}" for name in names[:4])
        raise UserError(f"the environment holds no numbers: {values}; {remedy}") from None
    if not (0 <= place.rank < place.world and 0 <= place.local_rank < place.local_world <= place.world):
        raise UserError(f"the environment contradicts itself: {place}; {remedy}")
    return place
