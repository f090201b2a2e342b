"""What the loop works with: parts that stay as they are, and the progress of the run, which alone changes."""

import time
from dataclasses import dataclass, field

from trainyard.config import Config, Plan, as_tree
from trainyard.data import decode
from trainyard.data.sampler import Length, Order
from trainyard.data.splits import Data, open_splits
from trainyard.parallel import numa
from trainyard.parallel.base import Strategy
from trainyard.run.checkpoint import Found
from trainyard.run.directory import RunDirectory, identity
from trainyard.run.export import refuse_missing
from trainyard.run.records import Records, open_records
from trainyard.telemetry.sinks import log_to
from trainyard.training.learner import Learner, build_learner
from trainyard.training.pace import Pace, pace_of


@dataclass
class Progress:
    """How far the run is."""

    step: int = 0  # optimizer steps done
    validated: int = 0  # epochs validated
    saved: int = -1  # the step of the newest checkpoint; -1: there is none
    saved_at: float = field(default_factory=time.monotonic)  # when that was, or when the run was built
    stop: bool = False  # this process was told to stop


@dataclass(frozen=True)
class Trainer:
    """One process's part in a run."""

    config: Config
    plan: Plan  # how the work of a step is divided
    strategy: Strategy  # the way to the other processes
    data: Data  # samples, their order, the length of the run
    learner: Learner  # model, optimizer, average
    records: Records  # run directory, checkpoints, metrics, clock, watchdog
    pace: Pace  # how far the device is behind
    identity: dict[str, object]  # what must stay the same for the run to be resumed
    progress: Progress = field(default_factory=Progress)


def build(config: Config, plan: Plan, strategy: Strategy) -> Trainer:
    """Build one process's part in a run; every process calls it. Raises UserError and ExitError.

    What is cheap and may be refused comes first: wrong data, a run directory that cannot be written, another run's
    checkpoint. Then the model is built.
    """
    refuse_missing(config.publish.export)
    data = open_data(config, plan, strategy)
    if config.host.numa and strategy.device.type == "cuda":
        numa.bind(strategy.device)  # after the loader has counted its cores, before it starts threads
    directory = RunDirectory(config.run, config.resume, as_tree(config))
    wanted = identity(
        config.model, config.optimizer, config.seed,
        batch=plan.batch, classes=data.splits.classes, samples=data.order.samples,
    )  # fmt: skip
    found: Found | None = strategy.on_first(lambda: directory.start(wanted))
    directory.lease.join(strategy.broadcast_object(directory.lease.number))
    log_to(directory.path, strategy.rank, directory.lease.in_force)
    decode.agree(strategy.gather_objects, data.splits.decoder)
    learner = build_learner(config, plan, strategy, data)
    records = open_records(config, strategy, data, directory, found)
    return Trainer(config, plan, strategy, data, learner, records, pace_of(strategy.device), wanted)


def open_data(config: Config, plan: Plan, strategy: Strategy) -> Data:
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
