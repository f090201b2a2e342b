"""Keeps the record of a run: losses of each step, sample ids, events, and the summary at its end.

Losses stay on the device until a line is due; then those of all steps since the last line are fetched and summed over
processes at once. A loss that is no number ends the run there, before anything of it is saved.
"""

import json
import logging
import os
import platform
import socket
import time
from typing import Any

import torch
from torch import Tensor

from trainers import __version__
from trainers.config import as_tree
from trainers.data.sampler import Ids, Order
from trainers.evaluate import Result
from trainers.exits import Exit, ExitError
from trainers.files import write_json
from trainers.optim import Length, learning_rate
from trainers.parallel.base import Strategy
from trainers.rundir import RunDirectory, length_asked
from trainers.settings import Config
from trainers.telemetry.clock import Clock
from trainers.telemetry.metrics import rewind
from trainers.telemetry.telemetry import Telemetry

log = logging.getLogger("trainers")


class Recorder:
    """The record of a run, on every process; only the first one writes what is common to all."""

    def __init__(
        self, config: Config, strategy: Strategy, directory: RunDirectory, *, order: Order, length: Length,
        clock: Clock, step: int, validated: int,
    ) -> None:  # fmt: skip
        self._config = config
        self._strategy = strategy
        self._directory = directory
        self._order = order
        self._length = length
        self._clock = clock
        self._pending: list[Tensor] = []
        self._flushed = step
        self._identity: dict[str, Any] = {}
        self._lost = rewind_all(directory, step, validated) if strategy.first else 0
        strategy.barrier()
        self._telemetry = (
            Telemetry(config, directory.path, length.steps, length.steps_per_epoch) if strategy.first else None
        )
        self._samples = None
        if config.debug.record_samples:
            path = directory.path / "samples" / f"rank-{strategy.rank}.jsonl"
            path.parent.mkdir(exist_ok=True)
            self._samples = path.open("a", buffering=1)
        self._seconds = clock.read()
        self._resumed_at = step
        here = {"rank": strategy.rank, "host": socket.gethostname(), "pid": os.getpid(), "device": str(strategy.device)}
        self._ranks: list[dict[str, Any]] = strategy.gather_objects(here)

    def introduce(self, identity: dict[str, Any]) -> None:
        """Say what is about to be trained, where, and from which step."""
        self._identity = identity
        if self._telemetry is None:
            return
        strategy, order = self._strategy, self._order
        self._telemetry.say(
            f"{self._config.model.name} on {order.samples} samples of {identity['model.num_classes']} classes: "
            f"{self._length.steps} steps of {order.batch}, {strategy.name} on {strategy.world} processes "
            f"({strategy.device.type}, {self._config.precision}), run directory {self._directory.path}"
        )
        step = self._resumed_at
        if step:
            self._telemetry.event("resume", step, self._epoch(step), lost_steps=self._lost)
            self._telemetry.say(f"resumed at step {step}; {self._lost} steps are done again")

    def step_done(self, step: int, ids: Ids, loss: Tensor) -> None:
        """Keep a step's loss and, if asked to, its sample ids."""
        self._pending.append(loss)
        if self._samples is not None:
            self._samples.write(json.dumps({"step": step, "sample_ids": ids.tolist()}) + "\n")

    def flush(self, step: int) -> None:
        """Write the line of metrics for the steps since the last one."""
        if not self._pending:
            return
        with self._clock.spent("communication"):
            mine = torch.stack(self._pending).double().cpu()
            losses = self._strategy.sum(mine)
        self._pending = []
        self._refuse_nan(mine, losses, step)
        seconds = self._clock.read()
        spent = {cause: round(value - self._seconds[cause], 4) for cause, value in seconds.items()}
        wall = sum(spent.values()) - spent["validation"]
        samples = self._order.samples_before(step)
        rate = (samples - self._order.samples_before(self._flushed)) / max(wall, 1e-9)
        self._flushed, self._seconds = step, seconds
        if self._telemetry is not None and not self._directory.lost():
            self._telemetry.event(
                "train", step, self._epoch(step), samples=samples, loss=float(losses[-1]),
                lr=learning_rate(self._config, self._order.batch, self._length, step - 1),
                images_per_second=round(rate, 2), seconds=spent,
            )  # fmt: skip

    def validated(self, step: int, epoch: int, result: Result) -> None:
        """Report a validation."""
        fields = {"samples": result.samples, "loss": result.loss, "top1": result.top1, "top5": result.top5}
        if self._telemetry is not None:
            self._telemetry.event("validate", step, epoch, correct=result.correct1, **fields)

    def saved(self, step: int) -> None:
        """Report a checkpoint."""
        if self._telemetry is not None:
            self._telemetry.event("checkpoint", step, self._epoch(step))

    def provenance(self, result: Result) -> str:
        """One line that says what trained the published weights."""
        return (
            f"{self._config.model.name}, {self._identity['model.num_classes']} classes, trained by trainyard "
            f"{__version__} (torch {torch.__version__}): {self._length.steps} steps of {self._order.batch}, "
            f"seed {self._config.seed}, top1 {result.top1:.2f} %"
        )

    def summarize(self, status: str, step: int, epochs: int, result: Result | None = None) -> None:
        """Write summary.json."""
        seconds = self._clock.read()
        training = sum(seconds[cause] for cause in ("data_wait", "compute", "communication", "checkpoint", "other"))
        samples = self._order.samples_before(step)
        summary = {
            "status": status,
            "steps": step,
            "epochs": epochs,
            "top1": result.top1 if result else None,
            "top5": result.top5 if result else None,
            "validation_samples": result.samples if result else None,
            "images_per_second": round(samples / max(training, 1e-9), 2),
            "world_size": self._strategy.world,
            "strategy": self._strategy.name,
            "seconds": seconds,
            "ranks": self._ranks,
            "samples": samples,
            "identity": self._identity,
            "length": length_asked(self._config),
            "model": self._config.model.name,
            "precision": self._config.precision,
            "finished_at": round(time.time(), 3),
            "versions": {"trainyard": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "config": as_tree(self._config),
        }
        write_json(self._directory.path / "summary.json", summary)
        if self._telemetry is not None and result is not None:
            self._telemetry.say(
                f"finished: top1 {result.top1:.2f} %, top5 {result.top5:.2f} %, "
                f"{summary['images_per_second']:,.0f} img/s over {training:,.0f} s of training; "
                f"published to {self._directory.path / 'published'}"
            )

    def close(self) -> None:
        """Close the files."""
        if self._telemetry is not None:
            self._telemetry.close()

    def _epoch(self, step: int) -> int:
        """The epoch of the last of `step` steps, counted from 1."""
        return self._order.epoch(max(step, 1) - 1) + 1

    def _refuse_nan(self, mine: Tensor, losses: Tensor, step: int) -> None:
        """End the run if a loss is no number; every process sees the same sum, so all end at the same step."""
        if bool(torch.isfinite(losses).all()):
            return
        index = int((~torch.isfinite(losses)).nonzero()[0])
        bad = step - len(losses) + index + 1
        ranks = [rank for rank, wrong in enumerate(self._strategy.gather_objects(not mine[index].isfinite())) if wrong]
        error = ExitError(
            f"the loss of step {bad} is {float(losses[index])} on ranks {ranks}; nothing after the last checkpoint is "
            "kept. Lower optimizer.lr, lengthen schedule.warmup_epochs or use another precision; the sample ids of the "
            f"step are in {self._directory.path / 'failed.json'}",
            Exit.NAN,
            {"step": bad, "ranks": ranks, "sample_ids": self._order.global_batch(bad - 1).tolist()},
        )
        if self._strategy.first and not self._directory.lost():
            self.summarize("failed", step, self._order.epoch(step))
        raise error


def rewind_all(directory: RunDirectory, step: int, validated: int) -> int:
    """Drop from every record what the run is about to do again."""
    for path in (directory.path / "samples").glob("rank-*.jsonl"):
        rewind(path, step, validated)
    return rewind(directory.path / "metrics.jsonl", step, validated)
