"""Applies the settings to a launcher and a number of processes; refuses combinations that cannot work.

The only check of settings besides the model's own: it needs the number of processes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trainyard.config.settings import Config, rounding
from trainyard.core.exits import UserError

# For each launcher (torchrun, mpirun): its program, that program's strategies, and the program that has the others
PROGRAMS = {
    "ddp": ("trainers.ddp", ("auto", "ddp", "fsdp", "exact", "single"), "trainers.hvd"),
    "horovod": ("trainers.hvd", ("auto", "horovod"), "trainers.ddp"),
}
WITH_GRAPHS = ("reduce-overhead", "max-autotune")  # modes of torch.compile that replay CUDA graphs


@dataclass(frozen=True)
class RunPlan:
    """How the work of a step is divided."""

    strategy: str  # ddp, fsdp, exact, single or horovod
    batch: int  # samples per step, over all processes
    forwards: int  # forwards per step, the same number on every process


def make_plan(config: Config, launcher: str, world: int) -> RunPlan:
    """Plan a run of `world` processes, started by `ddp` (torchrun) or `horovod` (mpirun); raises UserError."""
    strategy = strategy_name(config, launcher, world)
    batch = resolve_global_batch(config, world)
    forwards = count_forwards(batch, world, config.batch.micro, config.augment.unit)
    check_world(config, strategy, world, forwards)
    return RunPlan(strategy, batch, forwards)


def strategy_name(config: Config, launcher: str, world: int) -> str:
    """Return the strategy that `auto` stands for; one that was asked for keeps its name on a single process."""
    program, known, other = PROGRAMS[launcher]
    if config.strategy not in known:
        raise UserError(
            f"strategy = {config.strategy!r}: {program} knows {', '.join(known)}; change it, or run {other}"
        )
    if config.strategy == "single" and world > 1:
        raise UserError(f"strategy = 'single': this run has {world} processes; use strategy ddp, or one process")
    if config.strategy != "auto":
        return config.strategy
    return launcher if world > 1 or launcher == "horovod" else "single"


def resolve_global_batch(config: Config, world: int) -> int:
    """Return samples per step over all processes; raises UserError where they cannot be split over them."""
    size = config.batch.global_ if config.batch.global_ is not None else (config.batch.per_process or 0) * world
    if size < world:
        raise UserError(
            f"batch.global = {size}: smaller than the {world} processes of this run, so some would have nothing to do; "
            f"use batch.global >= {world} or fewer processes"
        )
    return size


def count_forwards(batch: int, world: int, micro: int, unit: int = 1) -> int:
    """Return the fewest forwards per step of which none takes more than `micro` samples (0: no limit)."""
    if not micro:
        return 1
    units = math.ceil(math.ceil(batch / unit) / world)
    return math.ceil(units / max(1, micro // unit))


def check_world(config: Config, name: str, world: int, forwards: int) -> None:
    """Raise UserError if the strategy cannot run on `world` processes with this many forwards per step."""
    if name == "horovod" and (text := next(_horovod(config, world), None)):
        raise UserError(text)
    if name == "exact" and (text := next(_exact(config, world), None)):
        raise UserError(text)
    if name == "ddp" and config.ddp.static_graph and world > 1 and forwards > 1:
        raise UserError(
            f"ddp.static_graph = True with {forwards} forwards per step (batch.micro = {config.batch.micro}): "
            "torch's DDP can't do both; set one of them to false or 0"
        )
    if config.model.compile_mode in WITH_GRAPHS and (text := next(_graphs(config, name, forwards), None)):
        raise UserError(text)


def _graphs(config: Config, name: str, forwards: int) -> Iterator[str]:
    """Yield what CUDA graphs exclude: weights that move, and gradients that a later replay would overwrite."""
    mode = f"model.compile_mode = {config.model.compile_mode!r}"
    if name == "fsdp":
        yield (
            f"{mode} with strategy = 'fsdp': CUDA graphs need weights that stay where they are, and FSDP gathers them "
            "elsewhere; use max-autotune-no-cudagraphs, or ddp"
        )
    if forwards > 1:
        yield (
            f"{mode} with {forwards} forwards per step (batch.micro = {config.batch.micro}): CUDA graphs would "
            "overwrite gradients that are still added up; use default or max-autotune-no-cudagraphs, or a batch that "
            "is one forward per step"
        )


def _horovod(config: Config, world: int) -> Iterator[str]:
    if config.comm.compression != "none":
        yield f"comm.compression = {config.comm.compression!r}: Horovod compresses by itself; set horovod.compression"
    yield from rounding(config, "horovod.compression", config.horovod.compression)
    if config.horovod.op == "adasum":
        yield from _adasum(config, world)


def _exact(config: Config, world: int) -> Iterator[str]:
    """Yield why sums could not be one tree: it needs the same leaves on any number of processes, and a power of two."""
    whole, micro, exact = config.batch.global_, config.batch.micro, "strategy = 'exact'"
    pieces, rest = divmod(whole or 0, micro or 1)
    if not whole or not micro or rest or pieces & (pieces - 1):
        yield (
            f"batch.global = {whole}, batch.micro = {micro} with {exact}: a step is a power of two of forwards; set "
            "both, and batch.global to 1, 2, 4, 8, ... times batch.micro"
        )
    if world & (world - 1) or world > pieces:
        yield (
            f"{exact} on {world} processes: it needs a power of two, and no more than the {pieces} forwards of a step "
            "(batch.global / batch.micro)"
        )
    if micro % config.augment.unit:
        yield f"batch.micro = {micro} with {exact} and mixup or CutMix: neighbours share a forward; use an even number"
    for key, value, wanted in (
        ("model.batch_norm", config.model.batch_norm, "local"),
        ("model.compile", config.model.compile, False),
        ("comm.compression", config.comm.compression, "none"),
    ):
        if value != wanted:
            yield f"{key} = {value!r} with {exact}: its sums have another order; set {key} to {wanted}"


def _adasum(config: Config, world: int) -> Iterator[str]:
    """Adasum combines the updates of each process's own optimizer, so there is no common gradient to change."""
    if world & (world - 1):
        yield f"horovod.op = 'adasum' on {world} processes: needs a power of two; use that many, or average"
    if config.optimizer.clip_norm:
        yield (
            f"optimizer.clip_norm = {config.optimizer.clip_norm} with horovod.op = 'adasum': Adasum never forms the "
            "gradient whose norm this would limit; set it to 0, or horovod.op to average"
        )
    if config.precision == "fp16":
        yield (
            "precision = 'fp16' with horovod.op = 'adasum': the scaler must see combined gradients, and Adasum "
            "combines updates; use bf16, or horovod.op average"
        )
    if config.horovod.predivide != 1.0:
        yield (
            f"horovod.predivide = {config.horovod.predivide} with horovod.op = 'adasum': there is no average to "
            "divide; set it to 1"
        )
