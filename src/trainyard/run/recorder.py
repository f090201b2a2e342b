"""Keeps the record of a run: losses of each step, sample ids, events, and the summary at its end.

Losses stay on the device until a metrics line is due. Then the losses of all steps since the last line are fetched and
summed over processes in one message, with each process's seconds by part. On a GPU that line is written when the next
one is due: by then its losses have come without a wait. A loss that is NaN, infinite or above log.max_loss ends the run
there, before anything of it is saved.
"""

import json
import logging
import math
import os
import platform
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainyard import __version__
from trainyard.config import Config, as_tree
from trainyard.core.exits import Exit, ExitError
from trainyard.core.storage import Appender, storage
from trainyard.data.sampler import Ids
from trainyard.data.sizes import size_of
from trainyard.data.splits import Data
from trainyard.parallel.base import Strategy
from trainyard.run.directory import RunDirectory, requested_length
from trainyard.run.owner import owner_name
from trainyard.run.result import Result, write_confusion
from trainyard.telemetry import stragglers as slowest
from trainyard.telemetry.clock import PARTS, Clock, goodput
from trainyard.telemetry.energy import KINDS, known, meter
from trainyard.telemetry.goodput import Past, settle
from trainyard.telemetry.hang_bound import shortest
from trainyard.telemetry.metrics import COLD, FEW, rewind
from trainyard.telemetry.outbox import LAST_SECONDS
from trainyard.telemetry.sinks import Telemetry

log = logging.getLogger("trainyard")


Fetched = Callable[[], Tensor]  # waits for what is copied to the host


def here(tensor: Tensor) -> Fetched:
    """Fetch a tensor that is on the host already."""
    return lambda: tensor


class MetricsLine(NamedTuple):
    """A line of metrics that is begun: of the steps `after` one, up to `step`."""

    after: int
    step: int
    lr: float
    losses: Fetched  # one for each step
    spent: dict[str, float]  # seconds by cause
    held: float  # bytes of memory
    joules: Sequence[float]  # by kind


class Recorder:
    """The record of a run, on every process; only rank 0 writes what is common to all."""

    def __init__(self, config: Config, strategy: Strategy, directory: RunDirectory, data: Data, clock: Clock) -> None:
        """Keep what the record is about; `begin` opens it."""
        self._config, self._strategy, self._directory, self._clock = config, strategy, directory, clock
        self._order, self._length, self._class_names = data.order, data.length, data.splits.class_names
        self._telemetry: Telemetry | None = None
        self._samples: Appender | None = None
        self._past = Past()
        self._identity: dict[str, Any] = {}
        self._ranks: list[dict[str, Any]] = []
        # Since the last flush: each step's loss, on the device; lines that are begun and not written; up to the last
        # flush: the step, and seconds by cause
        self._pending: list[Tensor] = []
        self._lines: deque[MetricsLine] = deque()
        self._flushed, self._seconds = 0, clock.read()
        # Of this start, up to the last flush: each rank's seconds by part, and wall-clock seconds
        self._times = [[0.0] * len(PARTS) for _ in range(strategy.world)]
        self._wall = 0.0
        self._network = slowest.Network()
        self._meter = meter(strategy.device, strategy.place.local_rank == 0)
        self._energy: dict[str, float] = {}  # joules of all starts, by kind

    def begin(self, step: int, validated: int, identity: dict[str, Any]) -> None:
        """Open the record at a step, after so many validated epochs; every process calls it, before the first step.

        Lines that an earlier start wrote after that step are dropped, since those steps are repeated. Raises
        TakenOverError where another job has the run directory.
        """
        strategy, path = self._strategy, self._directory.path
        self._flushed, self._identity = step, identity
        lost = 0
        if strategy.is_rank0:
            self._past = settle(self._clock, path, step)
            with self._directory.fenced():
                lost = rewind_all(path, step, validated, self._directory.staging)
        strategy.barrier()
        self._open(step)
        self._seconds, phases = self._clock.read(), self._past.phases() | self._clock.phases()
        self._ranks = strategy.gather_objects(_describe_process(strategy))
        self._introduce(step, lost, phases)

    def _open(self, step: int) -> None:
        config, path = self._config, self._directory.path
        host = socket.gethostname()
        endpoint = None
        if config.metrics.port:
            from trainyard.telemetry import prometheus

            endpoint = prometheus.serve(config.metrics.port, self._name, self._strategy.place, host)
        if self._strategy.is_rank0:
            self._telemetry = Telemetry(
                config, path, self._directory.held, total=self._length.steps,
                steps_per_epoch=self._length.steps_per_epoch, endpoint=endpoint, owner=owner_name(),
            )  # fmt: skip
        if config.debug.record_samples:
            file = path / "samples" / f"rank-{self._strategy.rank}.jsonl"
            file.parent.mkdir(exist_ok=True)
            self._samples = Appender(file, self._directory.lease.seems_held)

    def _introduce(self, step: int, lost: int, phases: Mapping[str, float]) -> None:
        """Report what is trained, on which devices, from which step, and what this start took."""
        if (telemetry := self._reporting) is None:
            return
        config, strategy, order, past = self._config, self._strategy, self._order, self._past
        earlier = self._clock.before
        telemetry.event(
            "start", step, self._epoch(step), started=round(self._clock.started, 3),
            restarts=past.restarts, idle=round(past.idle, 3), world_size=strategy.world, strategy=strategy.name,
            steps=self._length.steps, model=config.model.name, classes=len(self._class_names), run=self._name,
            seconds={cause: round(value - earlier.get(cause, 0.0), 4) for cause, value in self._seconds.items()},
            seconds_total=self._seconds,
            phases={phase: round(value, 3) for phase, value in phases.items()},
        )  # fmt: skip
        telemetry.say(
            f"{config.model.name} on {order.samples} samples of {self._identity['model.num_classes']} classes: "
            f"{self._length.steps} steps of {order.batch}, {strategy.name} on {strategy.world} processes "
            f"({strategy.device.type}, {config.precision}), run directory {self._directory.path}"
        )
        if step:
            telemetry.event(
                "resume", step, self._epoch(step), lost_steps=lost, lost_seconds=round(past.lost, 3),
                restart_wait_seconds=round(past.waited, 3),
            )  # fmt: skip
            telemetry.say(f"resumed at step {step}; {lost} steps are done again")

    def _image_size(self, step: int) -> int:
        """Return height and width of the training images of the last of so many steps, in pixels."""
        return size_of(self._config.data, self._order.epoch(step - 1), self._length.epochs)

    @property
    def _reporting(self) -> Telemetry | None:
        """Where this process reports for all: rank 0 does, as long as the run directory is its run's."""
        return None if self._directory.lost() else self._telemetry

    @property
    def _name(self) -> str:
        return self._config.run.name or self._directory.path.resolve().name

    def step_done(self, step: int, ids: Ids, loss: Tensor) -> None:
        """Keep a step's loss and, if asked to, its sample ids."""
        self._pending.append(loss)
        if self._samples is not None:
            self._samples.write(json.dumps({"step": step, "sample_ids": ids.tolist()}) + "\n")

    def flush(self, step: int, lr: float, fetch: Callable[[Tensor], Fetched] = here, late: bool = False) -> None:
        """Begin the line of metrics for the steps since the last one, and write it, or if `late` the one before.

        Its loss is the mean over them, `lr` the last one's learning rate; `fetch` begins to copy losses from the
        device. A checkpoint is saved right after a line, so a start never begins amid the steps of one.
        """
        if self._pending:
            with self._clock.spent("compute"):  # on a GPU, the steps are not over until their losses are here
                losses = fetch(torch.stack(self._pending).double())
                if not late:
                    losses()
            seconds = self._clock.read()
            spent = {cause: round(value - self._seconds[cause], 4) for cause, value in seconds.items()}
            held = slowest.memory_held(self._strategy.device)
            self._lines.append(MetricsLine(self._flushed, step, lr, losses, spent, held, self._meter.read()))
            self._pending, self._seconds, self._flushed = [], seconds, step
        self._write(leave=int(late))

    def write_begun(self) -> None:
        """Write all lines that were begun."""
        self._write(leave=0)

    def _write(self, leave: int) -> None:
        while len(self._lines) > leave:
            self._write_line(self._lines.popleft())

    def _write_line(self, line: MetricsLine) -> None:
        step, spent = line.step, line.spent
        with self._clock.spent("compute"):
            mine = line.losses()
        with self._clock.spent("communication"):
            rank, world = self._strategy.rank, self._strategy.world
            packed = slowest.pack(mine, spent, line.held, line.joules, rank=rank, world=world)
            losses, times, memory, joules = slowest.unpack(self._strategy.sum(packed), world)
        self._refuse_diverged(mine, losses, step)
        self._energy = {kind: self._past.joules.get(kind, 0.0) + j for kind, j in zip(KINDS, joules, strict=True)}
        wall = sum(spent.values()) - spent["validation"] - spent["init"]  # from the first step on
        self._wall += wall
        self._times = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(self._times, times, strict=True)]
        last = slowest.find(times, wall)
        several = len({one["host"] for one in self._ranks}) > 1  # on one node there is no network between them
        slow = self._network.slower(times, step - line.after) if several else 0.0
        samples = self._order.samples_before(step)
        rate = (samples - self._order.samples_before(line.after)) / max(wall, 1e-9)
        if (telemetry := self._reporting) is not None:
            telemetry.event(
                "train", step, self._epoch(step), samples=samples, loss=float(losses.mean()),
                lr=line.lr, images_per_second=round(rate, 2), seconds=spent,
                **({"image_size": self._image_size(step)} if self._config.data.size_start else {}),
                **({"slowest": last.as_dict()} if last else {}),
                **({"slow_network": slow} if slow else {}),
                **({"joules": used} if (used := known(self._energy)) else {}),
            )  # fmt: skip
            telemetry.ranks(self._ranks, self._times, memory)

    def report_validation(self, step: int, epoch: int, result: Result, cold: float = 0.0) -> None:
        """Report a validation; `cold` is the share of BatchNorm's averages that is still their first value."""
        fields = {"samples": result.samples, "loss": result.loss, "top1": result.top1, "top5": result.top5}
        if cold >= COLD:
            fields["batch_norm_start"] = round(cold, 4)
        if (telemetry := self._reporting) is not None:
            telemetry.event("validate", step, epoch, correct=result.correct1, **fields)
            if result.confusion is not None:
                with self._directory.fenced():
                    staging = self._directory.staging
                    write_confusion(self._directory.path, result.confusion, self._class_names, staging)

    @property
    def interruptions(self) -> int:
        """Starts of the run before this one that had no orderly end; known to rank 0."""
        return self._past.interruptions

    def say(self, text: str) -> None:
        """Print a line for people, before what takes long."""
        if (telemetry := self._reporting) is not None:
            telemetry.say(text)

    def report_checkpoint(self, step: int) -> None:
        """Report a checkpoint, once it is whole."""
        if (telemetry := self._reporting) is not None:
            telemetry.event("checkpoint", step, self._epoch(step))

    def summary(self, status: str, step: int, epochs: int, result: Result | None = None) -> dict[str, Any]:
        """Return what summary.json holds."""
        seconds = self._clock.read()
        samples = self._order.samples_before(step)
        overall = slowest.find(self._times, self._wall)
        return {
            "status": status,
            "steps": step,
            "epochs": epochs,
            "top1": result.top1 if result else None,
            "top5": result.top5 if result else None,
            "validation_samples": result.samples if result else None,
            "images_per_second": round(samples / max(training_seconds(seconds), 1e-9), 2),
            "world_size": self._strategy.world,
            "strategy": self._strategy.name,
            "seconds": seconds,
            "goodput": round(goodput(seconds), 4),
            "restarts": self._past.restarts,
            "joules": known(self._energy),
            "slowest_rank": overall.as_dict() if overall else None,
            "ranks": [
                {**who, "seconds": {part: round(value, 3) for part, value in zip(PARTS, times, strict=True)}}
                for who, times in zip(self._ranks, self._times, strict=True)
            ],
            "samples": samples,
            "identity": self._identity,
            "length": requested_length(self._config.epochs, self._config.max_steps),
            "model": self._config.model.name,
            "precision": self._config.precision,
            "finished_at": round(time.time(), 3),
            "versions": {"trainyard": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "config": as_tree(self._config),
        }

    def summarize(
        self,
        status: str,
        step: int,
        epochs: int,
        result: Result | None = None,
        report: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        """Write summary.json, which says last that a run is over; raises TakenOverError where another job has it.

        `report` is called with the summary before; where it fails, the summary is written all the same.
        """
        summary = self.summary(status, step, epochs, result)
        seconds = summary["seconds"]
        telemetry = self._reporting
        if telemetry is not None:
            spent = {cause: round(value - self._seconds[cause], 4) for cause, value in seconds.items()}
            telemetry.event("end", step, self._epoch(step), status=status, seconds=spent, seconds_total=seconds)
        with self._directory.fenced():
            try:
                report(summary)
            finally:
                storage.write_json(self._directory.path / "summary.json", summary, via=self._directory.staging)
        if telemetry is not None and result is not None:
            top5 = f"top5 {result.top5:.2f} %, " if len(self._class_names) > FEW else ""
            telemetry.say(
                f"finished: top1 {result.top1:.2f} %, {top5}"
                f"{summary['images_per_second']:,.0f} img/s over {training_seconds(seconds):,.0f} s of training, "
                f"goodput {100 * summary['goodput']:.0f} %; "
                f"published to {self._directory.path / 'published'}"
            )

    def close(self) -> None:
        """Close the files."""
        if self._telemetry is not None:
            self._telemetry.close()

    def linger(self) -> None:
        """Give Prometheus time to scrape the last numbers, less than the watchdog tolerates."""
        if self._telemetry is not None:
            self._telemetry.linger(min(LAST_SECONDS, shortest(self._config.comm.hang_seconds) / 2 or LAST_SECONDS))

    def _epoch(self, step: int) -> int:
        """Return the epoch of the last of `step` steps, counted from 1."""
        return self._order.epoch(max(step, 1) - 1) + 1

    def _refuse_diverged(self, mine: Tensor, losses: Tensor, step: int) -> None:
        """Raise ExitError if a loss is NaN, infinite or above log.max_loss; all processes see the same sums and end."""
        most = self._config.log.max_loss or math.inf
        ill = ~torch.isfinite(losses) | (losses > most)
        if not bool(ill.any()):
            return
        index = int(ill.nonzero()[0])
        bad = step - len(losses) + index + 1
        batch = self._order.global_batch(bad - 1)
        own = len(self._order.slice(bad - 1, self._strategy.rank, self._strategy.world))
        wrong = not mine[index].isfinite() or float(mine[index]) * len(batch) > most * own
        ranks = [rank for rank, is_wrong in enumerate(self._strategy.gather_objects(wrong)) if is_wrong]
        limit = f", above log.max_loss = {most:g}," if losses[index].isfinite() else ""
        error = ExitError(
            f"the loss of step {bad} is {float(losses[index]):g}{limit} on ranks {ranks}; nothing after the last "
            "checkpoint is kept. Lower optimizer.lr, lengthen schedule.warmup_epochs or use another precision; the "
            f"sample ids of the step are in {self._directory.path / 'failed.json'}",
            Exit.NAN,
            {"step": bad, "ranks": ranks, "sample_ids": batch.tolist()},
        )
        if self._strategy.is_rank0 and self._directory.held():
            self.summarize("failed", step, self._order.epoch(step))
        raise error


def training_seconds(seconds: dict[str, float]) -> float:
    """Seconds that steps took, by cause: neither the start nor validation nor what follows the last step."""
    return sum(seconds[cause] for cause in ("data_wait", "compute", "communication", "checkpoint", "other"))


def rewind_all(directory: Path, step: int, validated: int, staging: Path | None = None) -> int:
    """Drop the steps after `step`, which will be repeated, from all records of a run directory; how many it were."""
    for path in (directory / "samples").glob("rank-*.jsonl"):
        rewind(path, step, validated, staging)
    return rewind(directory / "metrics.jsonl", step, validated, staging)


def _describe_process(strategy: Strategy) -> dict[str, Any]:
    """Return what the records say of a process."""
    gpu = torch.cuda.get_device_name(strategy.device) if strategy.device.type == "cuda" else None
    return {
        "rank": strategy.rank, "host": socket.gethostname(), "pid": os.getpid(), "device": str(strategy.device),
        **({"gpu": gpu} if gpu else {}),
    }  # fmt: skip
