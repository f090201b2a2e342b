"""Sends rank 0's events to every sink: metrics.jsonl, console, W&B, TensorBoard, MLflow, Prometheus, TrainJob."""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.config import Config, as_tree
from trainyard.core.storage import storage
from trainyard.telemetry import mlflow, outbox, tensorboard, trainjob, wandb
from trainyard.telemetry.console import Console
from trainyard.telemetry.metrics import Event, MetricsFile, read_events

if TYPE_CHECKING:
    from trainyard.telemetry.prometheus import Endpoint

LOG_BYTES = 32 << 20  # of a rank's log file, and of the one before it

log = logging.getLogger("trainyard")


class Telemetry:
    """Sends each event to metrics.jsonl, and to the others of these sinks as far as they are on."""

    def __init__(
        self,
        config: Config,
        path: Path,
        ours: Callable[[], bool],
        *,
        total: int,
        steps_per_epoch: int,
        endpoint: "Endpoint | None",
        owner: str = "",
    ) -> None:
        """`path` is the run directory; `ours` says whether this run still has it; `owner` is the release of the run."""
        self._endpoint = endpoint
        self._console = Console(total, steps_per_epoch, config.log.console_seconds)
        name, settings = config.run.name or path.resolve().name, as_tree(config)
        self._wandb: Any | None = wandb.start(
            config.wandb, settings, directory=config.run.dir, name=name, say=self.say, owner=owner
        )
        if self._endpoint is not None:
            for event in read_events(path / "metrics.jsonl"):
                self._endpoint.recall(event)
        self._file = MetricsFile(path / "metrics.jsonl", ours)
        started = (
            tensorboard.start(config.tensorboard, settings, path, self.say),
            mlflow.start(config.mlflow, settings, path, name, self.say),
        )
        self._outboxes = [one for one in started if one]
        self._trainjob = trainjob.start(total, self.say)
        self._processes, self._stopped = 1, False

    def event(self, kind: str, step: int, epoch: int, **fields: Any) -> None:
        """Report an event."""
        event: Event = {"event": kind, "step": step, "epoch": epoch, "time": round(time.time(), 3), **fields}
        self._file.write(event)
        for one in self._outboxes:
            one.wake()
        self._console.show(event)
        if self._endpoint is not None:
            self._endpoint.show(event)
        self._stopped = event.get("status") == "stopped"
        self._processes = event.get("world_size", self._processes)
        if self._wandb is not None:
            wandb.report(self._wandb, event, self._processes)
        if self._trainjob is not None:
            self._trainjob.show(event)

    def ranks(self, ranks: Sequence[dict[str, Any]], times: Sequence[Sequence[float]], held: list[float]) -> None:
        """Report each rank's seconds by part since the start (rank, part), and the bytes it holds (rank)."""
        if self._endpoint is not None:
            self._endpoint.show_ranks(ranks, times, held)

    def linger(self, longest: float) -> None:
        """Give services time to take the last numbers, and Prometheus to scrape them."""
        self._close_outboxes(min(longest, outbox.LAST_SECONDS))
        if self._endpoint is not None:
            self._endpoint.linger(longest)

    def say(self, text: str) -> None:
        """Print a line for people."""
        log.info(text)
        self._console.say(text)

    def close(self) -> None:
        """Send what is left and close."""
        if self._trainjob is not None:
            self._trainjob.close(outbox.STOP_SECONDS if self._stopped else trainjob.LAST_SECONDS)
        self._file.close()
        # The next start sends what is missing, and a pod that was told to stop has no time for it
        self._close_outboxes(outbox.STOP_SECONDS if self._stopped else outbox.LAST_SECONDS)
        if self._wandb is not None:
            wandb.finish(self._wandb, self.say, wandb.FINISH_SECONDS)
        self._console.close()

    def _close_outboxes(self, seconds: float) -> None:
        outboxes, self._outboxes = self._outboxes, []
        outbox.close(outboxes, self.say, seconds)


class _Log(RotatingFileHandler):
    """A log file that loses lines while storage fails, and is opened again for the next line."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        stream, self.stream = self.stream, None
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()


def log_to(path: Path, rank: int, ours: Callable[[], bool]) -> None:
    """Write this process's log lines to logs/rank-R.log, and keep that and one before it within bounds.

    Once the run directory is not `ours` any more, nothing is written.
    """
    folder = path / "logs"
    storage.make_folder(folder)
    handler = storage.perform(folder, _Log, folder / f"rank-{rank}.log", maxBytes=LOG_BYTES, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(lambda _: ours())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
