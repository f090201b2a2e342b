"""One process's part in a run: what is built before the first step, and what a checkpoint gives back to it.

The parts of a Trainer stay as they are; the progress of the run alone changes.
"""

import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint as recomputed

from trainyard.config import Config, RunPlan, as_tree, fingerprint
from trainyard.core import interrupts
from trainyard.core.exits import UserError
from trainyard.data import decode
from trainyard.data.sampler import Length, Order
from trainyard.data.sizes import sizes_of
from trainyard.data.splits import Data, open_splits
from trainyard.data.transforms import normalizer
from trainyard.models import factory
from trainyard.models.batch_norm import computed_again
from trainyard.parallel.base import Strategy
from trainyard.parallel.blocks import blocks
from trainyard.run import starts
from trainyard.run.checkpoint import Found, State
from trainyard.run.checkpoint_writer import Writer
from trainyard.run.directory import RunDirectory, identity
from trainyard.run.recorder import Recorder
from trainyard.telemetry.clock import Clock, process_start
from trainyard.telemetry.sinks import log_to
from trainyard.telemetry.watchdog import Watchdog
from trainyard.training import compiled
from trainyard.training import optimizer as optimizers
from trainyard.training.ema import Ema
from trainyard.training.interval import RECENT
from trainyard.training.mixup import mixes
from trainyard.training.pace import Pace, pace_of

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Progress:
    """How far the run is."""

    step: int = 0  # optimizer steps done
    validated: int = 0  # epochs validated
    saved: int = -1  # the step of the newest checkpoint; -1: there is none
    saved_at: float = field(default_factory=time.monotonic)  # when that was, or when the run was built
    stalls: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))  # seconds of training, a checkpoint each
    stop: bool = False  # this process was told to stop
    begun: int = 0  # the step at which this start has begun
    fits: set[str] = field(default_factory=set)  # parts of the run that these settings have done; on rank 0


@dataclass(frozen=True)
class Learner:
    """The model, and what trains it."""

    plain: nn.Module  # the model by itself: its weights are saved, validated and published
    model: nn.Module  # the same as the strategy wraps it, and compiled if asked for; training calls this one
    validated: nn.Module  # the same without the strategy's part in gradients; validation calls this one
    sizes: frozenset[int]  # samples of this process's forwards in a whole step
    optimizer: Optimizer
    scaler: torch.amp.GradScaler  # scales the loss in fp16, else does nothing
    ema: Ema | None
    autocast: torch.autocast  # to be entered for each forward
    normalise: Callable[[Tensor], Tensor]  # uint8 images (N, 3, H, W) -> normalised numbers on the device

    def predict(self, images: Tensor) -> Tensor:
        """Compute outputs (N, classes) for uint8 images (N, 3, H, W), by the model without the strategy around it."""
        with self.autocast:
            outputs: Tensor = self.validated(self.normalise(images))
        return outputs

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """Within this context, the model has the weights that are validated and published: the EMA, if there is one."""
        return self.ema.applied() if self.ema else contextlib.nullcontext()


@dataclass(frozen=True)
class Records:
    """The open records of a run, and its watchdog."""

    directory: RunDirectory
    found: Found | None  # the checkpoint that this start resumes from
    writer: Writer  # of checkpoints
    recorder: Recorder
    clock: Clock
    watchdog: Watchdog


@dataclass(frozen=True)
class Trainer:
    """One process's part in a run."""

    config: Config
    plan: RunPlan  # how the work of a step is divided
    strategy: Strategy  # the way to the other processes
    data: Data  # samples, their order, the length of the run
    learner: Learner  # model, optimizer, average
    records: Records  # run directory, checkpoints, metrics, clock, watchdog
    pace: Pace  # how far the device is behind
    identity: dict[str, object]  # what must stay the same for the run to be resumed
    progress: Progress = field(default_factory=Progress)


def build(config: Config, plan: RunPlan, strategy: Strategy) -> Trainer:
    """Build one process's part in a run; every process calls it. Raises UserError and ExitError.

    What is cheap and may be refused comes first: wrong data, a run directory that cannot be written, another run's
    checkpoint. Then the model is built.
    """
    data = open_data(config, plan, strategy)
    wanted = identity(
        config.model, config.optimizer, config.seed,
        batch=plan.batch, classes=data.splits.classes, samples=data.order.samples,
    )  # fmt: skip
    directory = RunDirectory(config.run, config.resume, as_tree(config))
    found: Found | None = strategy.on_rank0(lambda: directory.start(wanted))
    directory.lease.join(strategy.broadcast_object(directory.lease.number))
    log_to(directory.path, strategy.rank, directory.lease.seems_held)
    decode.agree(strategy.gather_objects, data.splits.decoder)
    learner = build_learner(config, plan, strategy, data, resumes=found is not None)
    records = open_records(config, strategy, data, directory, found)
    return Trainer(config, plan, strategy, data, learner, records, pace_of(strategy.device), wanted)


def open_data(config: Config, plan: RunPlan, strategy: Strategy) -> Data:
    """Open both splits, and put the training samples in order; raises UserError."""
    root = None
    if config.data.dir == "sample":  # prepared at its first use
        from trainyard.prepare.sample import ensure_sample

        root = ensure_sample()
    splits = open_splits(
        config.data, config.augment, config.model, config.seed,
        local_world=strategy.place.local_world, pin=strategy.device.type == "cuda", root=root,
    )  # fmt: skip
    pieces = plan.batch // config.batch.micro if config.strategy == "exact" else 0
    augment = config.augment
    order = Order(len(splits.train.labels), plan.batch, config.seed, augment.unit, augment.repeats, pieces)
    steps = config.max_steps or (config.epochs or 0) * order.steps_per_epoch
    return Data(splits, order, Length(steps, order.steps_per_epoch))


def build_learner(config: Config, plan: RunPlan, strategy: Strategy, data: Data, *, resumes: bool = False) -> Learner:
    """Build the model and its optimizer; every process calls it. Raises UserError.

    `resumes`: a checkpoint is loaded into them next.
    """
    device, precision = strategy.device, config.precision
    kept = torch.float64 if precision == "fp64" else torch.float32  # the type of the weights
    plain = factory.build(
        config.model, config.data, config.seed, data.splits.classes,
        dtype=kept, total=strategy.sum if strategy.world > 1 else None, resumes=resumes,
    )  # fmt: skip
    plain.to(device)
    if config.model.in_channels_last(device.type == "cuda"):
        plain.to(memory_format=torch.channels_last)
    if config.model.checkpointing:
        checkpoint_blocks(plain)
    if config.model.compile:
        # FSDP compiles each block by itself
        units = len(blocks(plain)) if strategy.lockstep else 0
        sizes = sizes_of(config.data, data.length.epochs)
        compiled.prepare_compiler(config.model, config.run, units, sizes=len(sizes))
    called: Any = torch.compile(plain, **config.model.compile_options) if config.model.compile else plain
    model = strategy.wrap(called)
    optimizer = strategy.distribute(optimizers.build(plain, config.optimizer), plain)
    if precision == "fp16":
        optimizers.begin_momentum(optimizer)
    ema = None
    if config.ema.decay:
        warmup = config.schedule.warmup_epochs
        ema = Ema(plain, config.ema, batch=data.order.batch, length=data.length, warmup_epochs=warmup)
    # Autocast would round what goes into a convolution; on a GPU that pass over memory is worth saving. Mixup and
    # CutMix mix before that, in full.
    rounded = AUTOCAST.get(precision) if device.type == "cuda" and not mixes(config.augment) else None
    return Learner(
        plain=plain,
        model=model,
        validated=plain if strategy.lockstep else called,  # FSDP compiles the parts of the model
        sizes=compiled.forward_sizes(data.order, plan, strategy.rank, strategy.world),
        optimizer=optimizer,
        scaler=torch.amp.GradScaler(device.type, enabled=precision == "fp16"),
        ema=ema,
        autocast=torch.autocast(device.type, AUTOCAST.get(precision), enabled=precision in AUTOCAST),
        normalise=normalizer(config.data.mean, config.data.std, device, kept, rounded),
    )


def checkpoint_blocks(model: nn.Module) -> None:
    """Have every block of a model computed again in backward; raises UserError where there are none.

    From the input that was kept: Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174.
    Dropout draws the same numbers again. Our BatchNorm updates its running statistics only once; a normalisation of
    the user's own that keeps such statistics would do so twice.
    """
    found = [block for block in blocks(model) if any(True for _ in block.children())]
    if not found:
        raise UserError("model.checkpointing = True: this model has no blocks to compute again; set it to false")
    for block in found:
        block.forward = _recomputing(block.forward)


def _recomputing(forward: Any) -> Any:
    def recompute(*inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        if torch.compiler.is_compiling():  # the compiler moves updates of statistics out of what is computed again
            return recomputed(forward, *inputs, use_reentrant=False, **named)
        return recomputed(forward, *inputs, use_reentrant=False, context_fn=_contexts, **named)

    return recompute


def _contexts() -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    """For a block's forward, and for its second computation."""
    return contextlib.nullcontext(), computed_again()


def open_records(
    config: Config, strategy: Strategy, data: Data, directory: RunDirectory, found: Found | None
) -> Records:
    """Open the records of a run directory that this run has entered; every process calls it."""
    clock = Clock(process_start())
    if strategy.is_rank0 and found:
        clock.add(found.meta.get("seconds", {}))
    keep = config.checkpoint
    return Records(
        directory=directory,
        found=found,
        writer=Writer(
            directory.checkpoints,
            keep.keep_last,
            keep.keep_best,
            ours=directory.held,
            holder=directory.holder,
            staging=directory.staging,
        ),
        recorder=Recorder(config, strategy, directory, data, clock),
        clock=clock,
        watchdog=Watchdog(directory.path, strategy, config.comm.hang_seconds, directory.staging),
    )


def resume(t: Trainer) -> None:
    """Load the checkpoint, if there is one, and begin the record at its step.

    Raises TakenOverError where another job has the run directory, OSError, and StorageError.
    """
    learner, records, progress = t.learner, t.records, t.progress
    if found := records.found:
        with records.directory.fenced():  # a newer job may have pruned it
            state = found.load() if t.strategy.is_rank0 else {}  # every process gets it through the strategy
        load(t, state, averaged=found.holds("ema"))
        load_scale(learner.scaler, found.meta["scaler"])
        progress.step = progress.saved = progress.begun = found.step
        progress.validated = int(found.meta["validated"])
    if t.strategy.is_rank0:
        progress.fits |= starts.fits(records.directory.path, fingerprint(t.config), t.strategy.world)
    records.recorder.begin(progress.step, progress.validated, t.identity)
    t.strategy.on_rank0(lambda: records.directory.note_begun(found))

    def stop(*_: object) -> None:
        progress.stop = True

    signal.signal(signal.SIGTERM, stop)
    interrupts.stop_at_first(stop)  # without our launcher, which sends SIGTERM
    interrupts.stop_at_hangup(stop)
    records.clock.begin()


def load_scale(scaler: torch.amp.GradScaler, state: dict[str, Any]) -> None:
    """Load the scale of the loss; a precision that has none left an empty one, and fp16 begins anew then."""
    if state:
        scaler.load_state_dict(state)


def load(t: Trainer, state: State, averaged: bool) -> None:
    """Load a checkpoint's state, which rank 0 has; `averaged`: it holds an average of the weights."""
    learner = t.learner
    average = state.pop("ema", {})
    if learner.ema and averaged:
        t.strategy.load_weights(learner.plain, average)
        learner.ema.restart()
    if state:
        state["optimizer"] = optimizers.by_name(state["optimizer"], learner.optimizer, learner.plain)
    t.strategy.load(learner.plain, learner.optimizer, state)
    if learner.ema and not averaged:
        learner.ema.restart()  # from the loaded weights
