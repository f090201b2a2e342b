"""A Prometheus text endpoint on the first process, when a port is set.

Names and meanings are part of the interface: alert rules are written on them (docs/reports.md lists them).
"""

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from trainers.exits import UserError
from trainers.telemetry.clock import CAUSES
from trainers.telemetry.metrics import Event

# name -> (event, field, help); the newest value of a field of an event
GAUGES = {
    "trainyard_step": ("train", "step", "Optimizer steps done"),
    "trainyard_steps_planned": ("start", "steps", "Optimizer steps of the whole run"),
    "trainyard_epoch": ("train", "epoch", "Epoch, counted from 1"),
    "trainyard_samples": ("train", "samples", "Training samples seen"),
    "trainyard_loss": ("train", "loss", "Training loss, mean over the global batch of the last step"),
    "trainyard_learning_rate": ("train", "lr", "Learning rate of the last step"),
    "trainyard_images_per_second": (
        "train", "images_per_second", "Training samples per second over all processes, waiting for data included"
    ),
    "trainyard_last_step_timestamp_seconds": ("train", "time", "Unix time of the last line of training metrics"),
    "trainyard_last_checkpoint_timestamp_seconds": ("checkpoint", "time", "Unix time of the last checkpoint's begin"),
    "trainyard_last_validation_timestamp_seconds": ("validate", "time", "Unix time of the last validation"),
    "trainyard_validation_loss": ("validate", "loss", "Loss over the validation split"),
    "trainyard_validation_top1_percent": ("validate", "top1", "Validation accuracy of the first guess, 0 to 100"),
    "trainyard_validation_top5_percent": ("validate", "top5", "Validation accuracy within five guesses, 0 to 100"),
    "trainyard_processes": ("start", "world_size", "Processes of the run"),
}  # fmt: skip


class Endpoint(Collector):
    """Serves the newest number of each kind; what has not happened yet is not served."""

    def __init__(self, port: int) -> None:
        self._values: dict[tuple[str, str], float] = {}
        self._seconds = dict.fromkeys(CAUSES, 0.0)
        self._start: Event = {}
        self._slowest: dict[str, Any] = {}
        registry = CollectorRegistry()
        registry.register(self)
        try:
            start_http_server(port, registry=registry)
        except OSError as error:
            raise UserError(
                f"metrics.port = {port}: cannot be opened ({error.strerror}); choose a free one, or 0"
            ) from error

    def show(self, event: Event) -> None:
        """Take over the numbers of an event."""
        kind = event["event"]
        if kind == "start":
            self._start = event
        if kind in ("start", "train"):
            for cause, seconds in event["seconds"].items():
                self._seconds[cause] += max(0.0, seconds)
        self._slowest = event.get("slowest", self._slowest)
        self.recall(event)

    def recall(self, event: Event) -> None:
        """Take over the numbers of an event of an earlier start."""
        kind = event["event"]
        numbers = {(kind, key): float(value) for key, value in event.items() if isinstance(value, int | float)}
        self._values = {**self._values, **numbers}

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now; called by the server's thread for each scrape."""
        for name, (kind, key, text) in GAUGES.items():
            if (value := self._values.get((kind, key))) is not None:
                yield GaugeMetricFamily(name, text, value=value)
        seconds = CounterMetricFamily(
            "trainyard_goodput_seconds", "Wall-clock seconds of the first process since its start, by cause; lost work "
            "and waiting for the restart before it included", labels=["cause"],
        )  # fmt: skip
        for cause, value in dict(self._seconds).items():
            seconds.add_metric([cause], round(value, 3))
        yield seconds
        if self._start:
            info = {key: str(self._start[key]) for key in ("model", "strategy", "run")}
            yield InfoMetricFamily("trainyard_run", "The run", value=info)
            text = "Starts of this run but the first one"
            yield CounterMetricFamily("trainyard_restarts", text, value=self._start["restarts"])
        if slow := self._slowest:
            yield GaugeMetricFamily("trainyard_slowest_rank", "Rank of the slowest process", value=slow["rank"])
            behind = GaugeMetricFamily(
                "trainyard_slowest_rank_behind_ratio", "Share of the time for which the slowest process holds up the "
                "others, by what keeps it: data, compute or communication", labels=["cause"],
            )  # fmt: skip
            for cause in ("data", "compute", "communication"):
                behind.add_metric([cause], slow["behind"] if slow["cause"] == cause else 0.0)
            yield behind
