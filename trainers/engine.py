"""The training loop. It knows no strategy by name: what processes share goes through `parallel/base.py`.

`run` is the whole life of a process: is the run over already? join the others, build or resume, train, finish.
"""

import contextlib
import logging
import math
import time
from typing import NoReturn

import torch
from torch import Tensor

from trainers import __version__, checkpoint, optim, parallel, publish
from trainers.config import as_tree, resolve_global_batch
from trainers.data.device import prefetched
from trainers.data.loader import Batch
from trainers.data.sampler import forwards_needed
from trainers.evaluate import Result, evaluate
from trainers.exits import Exit, ExitError, UserError
from trainers.parallel.base import CONTINUE, LEASE_LOST, SAVE
from trainers.rundir import RunDirectory, TakenOverError, identity, over_already, record_failure
from trainers.settings import Config
from trainers.telemetry.clock import Clock, process_start
from trainers.trainer import Trainer, build, unit

log = logging.getLogger("trainers")


def run(config: Config, entry: str) -> int:
    """Train as configured, under the launcher of an entry point (`ddp` or `horovod`); the exit code."""
    place = parallel.locate(config, entry)
    batch = resolve_global_batch(config, place.world)
    if message := over_already(config, batch):
        if place.rank == 0:
            print(message, flush=True)
        return Exit.DONE
    forwards = forwards_needed(batch, place.world, config.batch.micro, unit(config))
    strategy = parallel.connect(config, entry, place, forwards)
    directory = RunDirectory(config)
    try:
        trainer = build(config, strategy, directory, batch=batch, forwards=forwards, clock=Clock(process_start()))
        train(trainer)
        finish(trainer)
    except (UserError, ExitError) as error:
        code = error.code if isinstance(error, ExitError) else Exit.CONFIG
        if code in (Exit.CONFIG, Exit.NAN) and not isinstance(error, TakenOverError):
            record_failure(config, str(error), code, getattr(error, "details", {}))
        if code == Exit.NAN:  # all processes have found it at once, so they can wait until it is known outside
            trainer.recorder.linger()
            strategy.barrier()
        raise
    except BaseException as error:
        if strategy.is_lost_peer(error):
            log.exception("lost contact")
            raise ExitError(f"rank {place.rank} lost contact with another process: {error}", Exit.HANG) from error
        log.exception("failed")
        raise
    return Exit.DONE


def train(t: Trainer) -> None:
    """Run the steps that are left, saving and validating when due."""
    rank, world, end = t.strategy.rank, t.strategy.world, t.length.steps
    jobs = ((t.order.draws(step, rank, world), t.order.slice(step, rank, world)) for step in range(t.step, end))
    batches = prefetched(t.splits.train.batches(jobs), t.strategy.device)
    t.model.train()
    while t.step < end:
        if epoch_to_validate(t) is not None:
            validate(t)
        t.watchdog.beat("step", t.step)
        with t.clock.spent("data_wait"):
            batch = next(batches)
        vote = t.strategy.vote(t.ballot())  # travels while the step is computed
        with t.clock.spent("compute"):
            loss = train_step(t, batch)
        t.clock.move("compute", "communication", t.strategy.exposed_seconds())
        t.step += 1
        t.recorder.step_done(t.step, batch.ids, loss)
        if t.step % t.config.log.every_steps == 0 or t.step == end or save_due(t):
            t.recorder.flush(t.step)
        with t.clock.spent("communication"):
            outcome = vote()
        if outcome not in (CONTINUE, SAVE):
            end_early(t, outcome)
        if outcome == SAVE or save_due(t):
            t.recorder.flush(t.step)
            save(t)


def train_step(t: Trainer, batch: Batch) -> Tensor:
    """One optimizer step; this process's share of the global batch's mean loss."""
    total = len(t.order.global_batch(t.step))
    weight = t.strategy.loss_weight(len(batch.ids), total)
    batch_of_rate = t.strategy.rate_batch(t.order.batch)
    optim.set_learning_rate(t.optimizer, optim.learning_rate(t.config, batch_of_rate, t.length, t.step))
    # Dropout and the like draw the same numbers after a resume as they would have without it.
    t.strategy.seed(((t.config.seed << 32) + t.step) * t.strategy.world + t.strategy.rank)
    losses = []
    # All processes do the same number of forwards, also where a ragged batch leaves some of them empty-handed.
    parts = t.order.parts(len(batch.ids), t.forwards)
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        with contextlib.nullcontext() if last else t.strategy.accumulating(t.model):
            loss = t.loss(batch.pictures[part], batch.labels[part])
            t.scaler.scale(loss * weight).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    t.writer.settle()  # a checkpoint is copied while forward and backward run, but not any longer
    t.strategy.step(t.optimizer, t.scaler, t.config.optimizer.clip_norm)
    t.optimizer.zero_grad()
    if t.ema:
        t.ema.update(t.step)
    return torch.stack(losses).sum() / total


def epoch_to_validate(t: Trainer) -> int | None:
    """The epoch that is complete and waits for its validation, if any."""
    done, rest = divmod(t.step, t.order.steps_per_epoch)
    every = t.config.validate_.every_epochs
    return done if every and done > t.validated and not rest and done % every == 0 else None


def validate(t: Trainer) -> Result:
    """Measure the whole validation split."""
    epoch = min(t.length.epochs, math.ceil(t.step / t.order.steps_per_epoch))

    def ballot() -> int:
        t.watchdog.beat("validation", t.step)
        wish = t.ballot()
        return CONTINUE if wish == SAVE else wish  # it can wait for the next step

    t.writer.settle()
    with t.clock.spent("validation"), t.averaged():
        result = evaluate(t.plain, t.predict, t.splits.val, t.strategy, batch=t.config.validate_.batch, ballot=ballot)
    if isinstance(result, int):
        end_early(t, result)
    t.validated = epoch
    if t.strategy.first and t.config.checkpoint.keep_best:
        checkpoint.score(t.directory.checkpoints, t.step, result.top1)
    t.recorder.validated(t.step, epoch, result)
    return result


def save_due(t: Trainer) -> bool:
    """Whether a checkpoint is due at this step."""
    every = t.config.checkpoint.every_steps
    due = t.step == t.length.steps or (every > 0 and t.step % every == 0)
    # What may turn out to be among the best is saved before it is measured.
    due = due or (t.config.checkpoint.keep_best > 0 and epoch_to_validate(t) is not None)
    return due and t.step != t.saved


def save(t: Trainer, wait: bool = False) -> None:
    """Save the state of the run; training waits only while tensors are copied, unless asked to wait for the disk."""
    with t.clock.spent("checkpoint"):
        t.watchdog.beat("checkpoint", t.step)
        check_lease(t)
        state = t.strategy.full_state(t.plain, t.optimizer)
        if t.ema:
            state |= {"ema": t.strategy.full_tensors(t.ema.state_dict())}
        if t.strategy.first:
            meta = {
                "scaler": t.scaler.state_dict(),
                "identity": identity(t.config, t.splits.classes, t.order.batch),
                "validated": t.validated,
                "samples": t.order.samples_before(t.step),
                "world_size": t.strategy.world,
                "seconds": t.clock.read(),
                "version": __version__,
                "torch": torch.__version__,
                "config": as_tree(t.config),
            }
            t.writer.submit(t.step, state, meta, changing=t.plain.buffers())
            if wait:
                t.writer.wait()
        t.saved, t.saved_at = t.step, time.monotonic()
    t.recorder.saved(t.step)


def check_lease(t: Trainer) -> None:
    """Make sure, before writing, that the run directory is still this run's."""
    lost = t.strategy.first and t.directory.lost()
    if t.strategy.vote(LEASE_LOST if lost else CONTINUE)() == LEASE_LOST:
        end_early(t, LEASE_LOST)


def end_early(t: Trainer, outcome: int) -> NoReturn:
    """Leave as all processes have agreed: saved and stopped, or at once if the directory is another's."""
    if outcome == LEASE_LOST:
        message = t.strategy.on_first(t.directory.taken_message)
        t.watchdog.close()
        t.strategy.close()
        raise TakenOverError(message)
    t.recorder.flush(t.step)
    if t.step != t.saved:
        save(t, wait=True)
    if t.strategy.first:
        t.writer.wait()
        t.recorder.summarize("stopped", t.step, t.validated)
        t.directory.release(stopped=True)
        t.recorder.close()
    leave(t)
    raise ExitError(f"stopped on SIGTERM at step {t.step}; saved, the next start continues there", Exit.STOPPED)


def finish(t: Trainer) -> None:
    """Validate, publish and report."""
    if t.saved != t.step:
        save(t)
    result = validate(t)
    t.watchdog.beat("finish", t.step)
    with t.clock.spent("checkpoint"):
        if t.strategy.first:
            t.writer.wait()
        check_lease(t)
        with t.averaged():
            weights = t.strategy.full_tensors(t.plain.state_dict())
            if t.strategy.first:
                publish.publish(weights, t.directory.path / "published", t.recorder.provenance(result))
        if t.strategy.first:
            t.recorder.summarize("finished", t.step, t.validated, result)
            publish.report(t.directory.path)
            t.directory.release()
            t.recorder.close()
    leave(t)
    t.recorder.linger()


def leave(t: Trainer) -> None:
    """Part from the other processes when all are done."""
    t.strategy.barrier()
    t.watchdog.close()
    t.strategy.close()
