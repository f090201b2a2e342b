"""A run, to be read from top to bottom: build, resume, step, validate, save, finish.

Every process of a run executes this file at the same pace. What they share goes through `t.strategy`
(parallel/base.py), which is the only thing here that knows DDP from FSDP or Horovod. `t` is one process's part in the
run (trainer.py): of its parts only `t.progress` changes.
"""

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from trainyard import __version__, parallel, report
from trainyard.config import Config, RunPlan, as_tree, fingerprint
from trainyard.core import garbage
from trainyard.core.exits import Exit, ExitError
from trainyard.data.loader import Batch
from trainyard.data.prefetch import prefetch
from trainyard.data.sampler import Ids
from trainyard.data.sizes import size_of
from trainyard.models.batch_norm import counting_nothing, share_of_start
from trainyard.models.described import describe
from trainyard.parallel import probe
from trainyard.parallel.base import CONTINUE, LEASE_LOST, SAVE, STOP
from trainyard.parallel.environment import Place
from trainyard.parallel.pairs import in_pairs
from trainyard.run import attempts, checkpoint, publishing, starts
from trainyard.run.directory import record_failure
from trainyard.run.export_formats import refuse_missing
from trainyard.run.owner import TakenOverError
from trainyard.run.result import Result
from trainyard.training import optimizer as optimizers
from trainyard.training.compiled import compiled_or_eager
from trainyard.training.interval import LEAST, interval, time_to_failure
from trainyard.training.loss import loss_sum
from trainyard.training.mixup import mix, mixes
from trainyard.training.trainer import Trainer, build, resume
from trainyard.training.validate import evaluate

FITTING = 2  # steps that show that memory is enough: from the second on the optimizer's state is there


def run(config: Config, plan: RunPlan, place: Place) -> None:
    """Train as configured and planned.

    Raises UserError for mistakes that the user can fix, and ExitError for an early end with its exit code; what other
    errors mean is said by the caller (run/failures.py).
    """
    loaded = time.monotonic()
    strategy = parallel.connect(config, plan, place)
    joined = time.monotonic()
    if place.local_rank == 0:
        attempts.forget_killed_starts(Path(config.run.dir))
    refuse_missing(config.publish.export)
    probe.check(config.comm, strategy)
    t = build(config, plan, strategy)
    t.records.clock.note_start(loaded, joined)
    resume(t)
    train(t)
    finish(t)


# ------------------------------------------------------------------------------------------------ step


def train(t: Trainer) -> None:
    """Do the remaining steps, validating and saving when due."""
    every = t.config.host.gc_steps
    batches = prefetch(t.data.splits.train.batches(list_jobs(t), list_sizes(t)), t.strategy.device)
    t.learner.model.train()
    with garbage.at_steps(every):
        while t.progress.step < t.data.length.steps:
            if epoch_to_validate(t) is not None:
                validate(t)
            next_step(t, batches)
            garbage.collect(t.progress.step, every)


def next_step(t: Trainer, batches: Iterator[Batch]) -> None:
    """Do a step, and what is due after it."""
    progress, records, strategy = t.progress, t.records, t.strategy
    records.watchdog.beat("data", progress.step)
    report_checkpoints(t)
    batch = next_batch(t, batches)
    records.watchdog.beat("step", progress.step)
    vote = strategy.vote(choose_vote(t))  # travels while the step is computed
    with records.clock.spent("compute"):
        loss = train_step(t, batch)
        t.pace.limit_lag()
    records.clock.move("compute", "communication", strategy.exposed_seconds())
    progress.step += 1
    records.recorder.step_done(progress.step, batch.ids, loss)
    due = progress.step % t.data.length.steps_per_line(t.config.log.every_steps) == 0
    if progress.step == t.data.length.steps or save_due(t):
        flush(t)
    elif due:
        flush(t, late=t.pace.lags)
    with records.clock.spent("communication"):
        outcome = vote()
    if outcome not in (CONTINUE, SAVE):
        end_early(t, outcome)
    if fits_largest(t):
        note_fit(t, "step")
    if outcome == SAVE or save_due(t):
        flush(t)
        save(t)


def train_step(t: Trainer, batch: Batch) -> Tensor:
    """One optimizer step; this process's share of the global batch's mean loss."""
    learner, strategy, order, step = t.learner, t.strategy, t.data.order, t.progress.step
    total = len(order.global_batch(step))
    weight = strategy.loss_weight(len(batch.ids), total)
    optimizers.set_learning_rate(learner.optimizer, learning_rate(t, step))
    losses = []
    # All processes do the same number of forwards, also where a ragged batch leaves some of them empty.
    parts = order.parts(len(batch.ids), t.plan.forwards)
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        # Dropout and the like draw the same numbers after a resume as they would have without it.
        place = strategy.rank * len(parts) + index
        strategy.seed(((t.config.seed << 32) + step) * strategy.world * len(parts) + place)
        with contextlib.nullcontext() if last else strategy.accumulating(learner.model):
            loss = loss_of(t, batch.images[part], batch.labels[part])
            learner.scaler.scale(loss * weight).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach().double() / total)
    settle(t)
    strategy.step(learner.optimizer, learner.scaler, t.config.optimizer.clip_norm)
    learner.optimizer.zero_grad()
    if learner.ema:
        learner.ema.update(step)
    return in_pairs(losses)


def settle(t: Trainer) -> None:
    """Wait for the copy of a checkpoint, which may overlap forward and backward, and must end before the update."""
    begun = time.monotonic()
    t.records.writer.settle()
    if t.progress.stalls and t.progress.saved == t.progress.step:  # of the checkpoint just before this step
        t.progress.stalls[-1] += time.monotonic() - begun


def loss_of(t: Trainer, images: Tensor, labels: Tensor) -> Tensor:
    """Compute the summed loss of uint8 images (N, 3, H, W) and labels (N,), which begin at an even position.

    A forward without samples takes a blank one in their place, which counts nothing: its loss is 0, and so are its
    gradients. Flash attention, and many models, refuse a batch of none.
    """
    if len(labels):
        return _loss_sum(t, images, labels, len(labels))
    with counting_nothing():
        return 0.0 * _loss_sum(t, images.new_zeros(1, *images.shape[1:]), labels.new_zeros(1), 0)


def _loss_sum(t: Trainer, images: Tensor, labels: Tensor, samples: int) -> Tensor:
    """Compute the loss of images of which `samples` count: all, or none."""
    config = t.config
    inputs, targets = t.learner.normalise(images), labels
    if mixes(config.augment):
        inputs, targets = mix(inputs, labels, t.data.splits.classes, config.augment, config.seed, t.progress.step)
    with compiled_or_eager(config.model.compile, samples, t.learner.sizes), t.learner.autocast:
        outputs = t.learner.model(inputs)
    return loss_sum(outputs, targets, config.loss)


def learning_rate(t: Trainer, step: int) -> float:
    """Return the learning rate of a step, counted from 0."""
    return optimizers.learning_rate(
        t.config.schedule, t.config.optimizer, t.strategy.rate_batch(t.plan.batch), t.data.length, step
    )


def list_jobs(t: Trainer) -> Iterator[tuple[Ids, Ids]]:
    """Yield what the loader prepares for the remaining steps: augmentation keys and ids of this process's samples."""
    rank, world, order = t.strategy.rank, t.strategy.world, t.data.order
    for step in range(t.progress.step, t.data.length.steps):
        yield order.draws(step, rank, world), order.slice(step, rank, world)


def list_sizes(t: Trainer) -> Iterator[int]:
    """Yield the size of the images of each remaining step, in pixels."""
    for step in range(t.progress.step, t.data.length.steps):
        yield image_size(t, step)


def image_size(t: Trainer, step: int) -> int:
    """Return height and width of the training images of a step, in pixels."""
    return size_of(t.config.data, t.data.order.epoch(step), t.data.length.epochs)


def next_batch(t: Trainer, batches: Iterator[Batch]) -> Batch:
    """Return the next batch. Of the wait for it, what the device still worked for is the step's."""
    begun = time.monotonic()
    with t.records.clock.spent("data_wait"):
        batch = next(batches)
    waited = time.monotonic() - begun
    t.records.clock.move("data_wait", "compute", waited - t.pace.idle_seconds())
    return batch


def fits_largest(t: Trainer) -> bool:
    """Whether this start has done so many steps of the run's largest images that memory is enough for the rest."""
    first = t.progress.step - FITTING
    return first >= t.progress.begun and image_size(t, first) == t.config.data.image_size


def note_fit(t: Trainer, part: str) -> None:
    """Note that these settings have done a part of a run: want of memory in it will be worth another start.

    The wait for storage counts as that part, of a step as init.
    """
    if t.strategy.is_rank0 and part not in t.progress.fits:
        t.progress.fits.add(part)
        with t.records.clock.spent("init" if part == "step" else part):
            starts.note_fit(t.records.directory.path, t.strategy.world, part)


def catch_up(t: Trainer) -> None:
    """Wait for the device's enqueued work, so that its time is counted neither as metrics' nor as validation's."""
    with t.records.clock.spent("compute"):
        t.pace.wait()


def choose_vote(t: Trainer) -> int:
    """Return what this process asks for next; all processes carry out the strongest request among them."""
    if t.strategy.is_rank0 and t.records.directory.lost():
        return LEASE_LOST
    if t.progress.stop:
        return STOP
    # rank 0's clock decides for all
    return SAVE if t.strategy.is_rank0 and overdue(t, time.monotonic() - t.progress.saved_at) else CONTINUE


def overdue(t: Trainer, passed: float) -> bool:
    """Whether a checkpoint is due, so many seconds after the last one, by checkpoint.every_seconds."""
    seconds = t.config.checkpoint.every_seconds
    if seconds == "auto":
        return passed >= LEAST and passed >= interval_now(t)
    return seconds > 0 and passed >= seconds


def interval_now(t: Trainer) -> float:
    """Return the seconds between checkpoints that suit this run, as rank 0 has measured it."""
    clock, recorder = t.records.clock, t.records.recorder
    failure = time_to_failure(t.strategy.world, clock.lived, recorder.interruptions)
    return interval(t.progress.stalls, clock.start_seconds, failure, t.records.writer.last_seconds)


def flush(t: Trainer, late: bool = False) -> None:
    """Write the line of metrics for the steps since the last one.

    `late`: write the line before, whose losses have come from the device meanwhile, and leave this one to the next
    call. So a device that does steps after those has work all the time.

    Raises ExitError if a loss is NaN, infinite or above log.max_loss.
    """
    if not late:
        catch_up(t)
    rate = learning_rate(t, t.progress.step - 1)
    write_lines(t, lambda: t.records.recorder.flush(t.progress.step, rate, t.pace.fetch, late))


def write_lines(t: Trainer, write: Callable[[], None]) -> None:
    """Write lines of metrics; a loss that has diverged ends the run on all processes."""
    try:
        write()
    except ExitError as error:
        record_failure(t.records.directory.path, fingerprint(t.config), str(error), error.code, error.details)
        t.records.recorder.linger()
        t.strategy.barrier()  # all processes raise at the same step, so they can wait for Prometheus' scrape
        raise


# ------------------------------------------------------------------------------------------------ validate


def epoch_to_validate(t: Trainer) -> int | None:
    """Return the epoch that is complete and waits for its validation, if any."""
    done, rest = divmod(t.progress.step, t.data.order.steps_per_epoch)
    every = t.config.validate_.every_epochs
    return done if every and done > t.progress.validated and not rest and done % every == 0 else None


def validate(t: Trainer) -> Result:
    """Measure the whole validation split."""
    learner, records, step = t.learner, t.records, t.progress.step
    epoch = min(t.data.length.epochs, math.ceil(step / t.data.order.steps_per_epoch))

    def ask_vote() -> int:
        records.watchdog.beat("validation", step)
        report_checkpoints(t)
        wanted = choose_vote(t)
        return CONTINUE if wanted == SAVE else wanted  # the next step saves

    with records.clock.spent("checkpoint"):
        records.writer.settle()
    catch_up(t)
    write_lines(t, records.recorder.write_begun)
    loader, size = t.data.splits.val, t.config.validate_.batch
    whole = frozenset([min(size, len(loader.labels))])

    def forward(images: Tensor) -> Tensor:
        with compiled_or_eager(t.config.model.compile, len(images), whole):
            return learner.predict(images)

    with records.clock.spent("validation"), learner.averaged():
        result = evaluate(learner.plain, forward, loader, t.strategy, t.pace, batch=size, ask_vote=ask_vote)
    if isinstance(result, int):
        end_early(t, result)
    note_validation(t, epoch, result)
    return result


def note_validation(t: Trainer, epoch: int, result: Result) -> None:
    """Note what a validation has found; the wait for storage counts as validation."""
    records, step = t.records, t.progress.step
    with records.clock.spent("validation"):
        note_fit(t, "validation")
        t.progress.validated = epoch
        if t.strategy.is_rank0 and t.config.checkpoint.keep_best:
            with records.directory.fenced():
                checkpoint.score(records.directory.checkpoints, step, result.top1, records.directory.staging)
        cold = 0.0 if t.config.model.pretrained else share_of_start(t.learner.plain)
        records.recorder.report_validation(step, epoch, result, cold)


# ------------------------------------------------------------------------------------------------ save


def save_due(t: Trainer) -> bool:
    """Whether a checkpoint is due at this step."""
    step, every = t.progress.step, t.config.checkpoint.every_steps
    due = step == t.data.length.steps or (every > 0 and step % every == 0)
    # A checkpoint that may turn out among the best is saved before it is validated.
    due = due or (t.config.checkpoint.keep_best > 0 and epoch_to_validate(t) is not None)
    return due and step != t.progress.saved


def save(t: Trainer, wait: bool = False) -> None:
    """Save the state of the run; training waits only while tensors are copied, unless asked to wait for the disk."""
    learner, records, step = t.learner, t.records, t.progress.step
    begun = time.monotonic()
    with records.clock.spent("checkpoint"):
        records.watchdog.beat("checkpoint", step)
        check_lease(t)
        state = t.strategy.full_state(learner.plain, learner.optimizer)
        if learner.ema:
            state |= {"ema": t.strategy.full_tensors(learner.ema.state_dict())}
        if t.strategy.is_rank0:
            records.writer.submit(step, state, describe_state(t), changing=learner.plain.buffers())
            if wait:
                records.writer.wait()
        t.progress.saved, t.progress.saved_at = step, time.monotonic()
        t.progress.stalls.append(t.progress.saved_at - begun)
    note_fit(t, "checkpoint")
    report_checkpoints(t)


def report_checkpoints(t: Trainer) -> None:
    """Report the checkpoints that are whole since the last call: a record of one outlives it (run/starts.py)."""
    while t.records.writer.published:
        t.records.recorder.report_checkpoint(t.records.writer.published.popleft())


def describe_state(t: Trainer) -> dict[str, object]:
    """Return what a checkpoint's manifest holds beside the list of its files."""
    return {
        "scaler": t.learner.scaler.state_dict(),
        "identity": t.identity,
        "validated": t.progress.validated,
        "samples": t.data.order.samples_before(t.progress.step),
        "world_size": t.strategy.world,
        "seconds": t.records.clock.read(),
        "version": __version__,
        "torch": torch.__version__,
        "config": as_tree(t.config),
        "classes": [t.data.splits.class_keys, t.data.splits.class_names],
    }


def check_lease(t: Trainer) -> None:
    """Raise TakenOverError, before writing, if another job has taken the run directory."""
    lost = t.strategy.is_rank0 and not t.records.directory.held()
    if t.strategy.vote(LEASE_LOST if lost else CONTINUE)() == LEASE_LOST:
        end_early(t, LEASE_LOST)


# ------------------------------------------------------------------------------------------------ finish


def finish(t: Trainer) -> None:
    """Validate, publish and report."""
    learner, records, step = t.learner, t.records, t.progress.step
    path = records.directory.path
    if t.progress.saved != step:
        save(t)
    result = validate(t)
    records.watchdog.beat("finish", step)
    with records.clock.spent("checkpoint"):
        if t.strategy.is_rank0:
            records.writer.wait()
        report_checkpoints(t)
        check_lease(t)
    with records.clock.spent("publish"):
        with learner.averaged():
            weights = t.strategy.full_tensors(learner.plain.state_dict())
            t.strategy.on_rank0(lambda: publish_model(t, weights, result))
        if t.strategy.is_rank0:
            page = functools.partial(report.write, path, records.directory.staging)
            records.recorder.summarize("finished", step, t.progress.validated, result, page)
            records.directory.release()
            records.recorder.close()
    leave(t)
    records.recorder.linger()


def publish_model(t: Trainer, weights: Mapping[str, Tensor], result: Result) -> None:
    """Publish whole weights, on rank 0; raises UserError where an export fails."""
    splits, directory = t.data.splits, t.records.directory
    found = describe(t.config, splits.class_keys, splits.class_names)
    summary = t.records.recorder.summary("finished", t.progress.step, t.progress.validated, result)
    if kinds := t.config.publish.export:
        t.records.recorder.say(f"publishing the weights, then exporting them: {', '.join(kinds)}")
    with directory.fenced():
        publishing.publish(
            directory.path / "published", t.learner.plain, weights, found=found, summary=summary,
            staging=directory.staging,
        )  # fmt: skip


def end_early(t: Trainer, outcome: int) -> NoReturn:
    """End as all processes have agreed: saved and stopped, or at once if another job took the run directory."""
    records, progress = t.records, t.progress
    if outcome == LEASE_LOST:
        message = t.strategy.on_rank0(records.directory.lease.taken_message)
        records.watchdog.close()
        t.strategy.close()
        raise TakenOverError(message)
    flush(t)
    if progress.step != progress.saved:
        save(t, wait=True)
    if t.strategy.is_rank0:
        with records.clock.spent("checkpoint"):
            records.writer.wait()
        report_checkpoints(t)
        records.recorder.summarize("stopped", progress.step, progress.validated)
        records.directory.release(stopped=True)
        records.recorder.close()
    leave(t)
    raise ExitError(f"stopped at step {progress.step}; saved, the next start of this run continues there", Exit.STOPPED)


def leave(t: Trainer) -> None:
    """Leave the process group when all processes are done."""
    t.strategy.barrier()
    t.records.watchdog.close()
    t.strategy.close()
