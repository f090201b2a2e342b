"""What a run is made of, and how it is put together: data, model, strategy, run directory; from a checkpoint if any."""

import contextlib
import signal
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers import model, optim
from trainers.checkpoint import Writer
from trainers.data import decode
from trainers.data.sampler import Order
from trainers.data.splits import Splits, open_splits
from trainers.data.transforms import normalizer
from trainers.ema import Ema
from trainers.loss import loss_sum
from trainers.mix import mix, mixes
from trainers.optim import Length
from trainers.parallel.base import CONTINUE, LEASE_LOST, SAVE, STOP, State, Strategy
from trainers.recorder import Recorder
from trainers.rundir import RunDirectory, identity, refuse_other
from trainers.settings import Config
from trainers.telemetry.clock import Clock
from trainers.telemetry.telemetry import log_to
from trainers.watchdog import Watchdog

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Trainer:
    """Everything the loop works with, and the few things that change."""

    config: Config
    strategy: Strategy
    directory: RunDirectory
    splits: Splits
    order: Order
    length: Length
    forwards: int
    plain: nn.Module
    model: nn.Module
    optimizer: Optimizer
    scaler: torch.amp.GradScaler
    autocast: torch.autocast
    prepare: Any
    ema: Ema | None
    writer: Writer
    recorder: Recorder
    clock: Clock
    watchdog: Watchdog
    step: int = 0
    validated: int = 0
    saved: int = -1
    saved_at: float = field(default_factory=time.monotonic)
    stop: bool = False

    def ballot(self) -> int:
        """What this process wants to happen next; the strongest wish of all is carried out by all."""
        if self.strategy.first and self.directory.lost(every=1.0):
            return LEASE_LOST
        if self.stop:
            return STOP
        seconds = self.config.checkpoint.every_seconds
        # the first process' clock decides for all
        overdue = self.strategy.first and seconds and time.monotonic() - self.saved_at >= seconds
        return SAVE if overdue else CONTINUE

    def loss(self, pictures: Tensor, labels: Tensor) -> Tensor:
        """Summed training loss of uint8 pictures (N, 3, H, W) and labels (N,), which begin at an even position."""
        inputs, targets = self.prepare(pictures), labels
        if mixes(self.config.augment):
            inputs, targets = mix(inputs, labels, self.splits.classes, self.config.augment, self.config.seed, self.step)
        with self.autocast:
            outputs = self.model(inputs)
        return loss_sum(outputs, targets, self.config.loss)

    def predict(self, pictures: Tensor) -> Tensor:
        """Outputs for uint8 pictures, without the strategy around the model."""
        with self.autocast:
            outputs: Tensor = self.plain(self.prepare(pictures.to(self.strategy.device, non_blocking=True)))
        return outputs

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """While this holds, the model has the weights that are validated and published."""
        return self.ema.applied() if self.ema else contextlib.nullcontext()


def build(
    config: Config, strategy: Strategy, directory: RunDirectory, *, batch: int, forwards: int, clock: Clock
) -> Trainer:
    """Open the data, enter the run directory, and build the model, from a checkpoint if there is one."""
    device = strategy.device
    splits = open_splits(config, pin=device.type == "cuda")
    order = Order(len(splits.train.labels), batch, config.seed, unit(config), config.augment.repeats)
    length = Length(config.max_steps or (config.epochs or 0) * order.steps_per_epoch, order.steps_per_epoch)
    strategy.on_first(directory.enter)
    log_to(directory.path, strategy.rank)
    decode.agree(strategy.gather_objects, splits.decoder)
    wanted = identity(config, splits.classes, batch)
    meta, state = read_checkpoint(strategy, directory, wanted)

    dtype = DTYPES[config.precision]
    master = torch.float64 if config.precision == "fp64" else torch.float32
    plain = model.build(config, splits.classes, master, strategy.sum if strategy.world > 1 else None)
    plain.to(device)
    if config.model.channels_last:
        plain.to(memory_format=torch.channels_last)
    compiled: Any = torch.compile(plain) if config.model.compile else plain
    wrapped = strategy.wrap(compiled)
    optimizer = strategy.distribute(optim.build(plain, config.optimizer), plain)
    scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
    if meta:
        strategy.load(plain, optimizer, {key: state[key] for key in ("model", "optimizer") if key in state})
        scaler.load_state_dict(meta["scaler"])
    ema = average(config, plain, order, length)  # of the weights gone on from, where the checkpoint has no average
    if meta and ema:
        strategy.load_tensors(ema.state_dict(), state.get("ema", {}))
    step = int(meta.get("step", 0))
    if strategy.first:
        clock.add(meta.get("seconds", {}))
    trainer = Trainer(
        config=config, strategy=strategy, directory=directory, splits=splits, order=order, length=length,
        forwards=forwards, plain=plain, model=wrapped, optimizer=optimizer, scaler=scaler,
        autocast=torch.autocast(device.type, dtype, enabled=config.precision in ("bf16", "fp16")),
        prepare=normalizer(config.data.mean, config.data.std, device, master), ema=ema,
        writer=Writer(
            directory.checkpoints, config.checkpoint.keep_last, config.checkpoint.keep_best, directory.held,
            directory.holder,
        ),
        recorder=Recorder(
            config, strategy, directory, order=order, length=length, clock=clock, step=step,
            validated=int(meta.get("validated", 0)), class_names=splits.class_names,
        ),
        clock=clock, watchdog=Watchdog(directory.path, strategy, config.comm.hang_seconds),
        step=step, validated=int(meta.get("validated", 0)), saved=step if meta else -1,
    )  # fmt: skip
    trainer.recorder.introduce(wanted)
    signal.signal(signal.SIGTERM, lambda *_: setattr(trainer, "stop", True))
    clock.begin()
    return trainer


def unit(config: Config) -> int:
    """Samples that must stay together: pairs, where pictures are mixed with their neighbours."""
    return 2 if mixes(config.augment) else 1


def average(config: Config, plain: nn.Module, order: Order, length: Length) -> Ema | None:
    """The moving average of the weights, if one is kept."""
    if not config.ema.decay:
        return None
    return Ema(plain, config.ema, batch=order.batch, length=length, warmup_epochs=config.schedule.warmup_epochs)


def read_checkpoint(
    strategy: Strategy, directory: RunDirectory, wanted: dict[str, Any]
) -> tuple[dict[str, Any], State]:
    """The checkpoint to go on from: its facts on all processes, its tensors on the first one only."""
    tensors: State = {}

    def read() -> dict[str, Any]:
        found, reports = directory.find_checkpoint()
        for text in reports:
            print(text, flush=True)
        if found is None:
            return {}
        refuse_other(found.meta["identity"], wanted, directory.path)
        tensors.update(found.load())
        return found.meta

    meta: dict[str, Any] = strategy.on_first(read)
    return meta, tensors
