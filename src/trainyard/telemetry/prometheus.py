"""A Prometheus endpoint, when a port is set: on the first process of each node, so that every pod's target is up.

Rank 0 serves the run's numbers; the other endpoints only identify themselves. Names and meanings are part of the
interface, since alert rules use them (docs/metrics.md lists them).
"""

import itertools
import logging
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from trainyard.core.exits import UserError
from trainyard.parallel.environment import Place
from trainyard.telemetry.clock import CAUSES, PARTS
from trainyard.telemetry.metrics import Event
from trainyard.telemetry.outbox import LAST_SECONDS

SHORTEST = 10.0  # as long it waits where scrapes come often: a busy Prometheus may be late by several intervals
SCRAPES = 8  # whose times are kept: two servers that scrape one run come in pairs, and the interval is the longer gap
SENDING = 0.5  # seconds that it gives the answer to that scrape

log = logging.getLogger("trainyard")

# name -> (event, field, help); the newest value of a field of an event
GAUGES = {
    "trainyard_step": ("train", "step", "Optimizer steps done"),
    "trainyard_steps_planned": ("start", "steps", "Optimizer steps of the whole run"),
    "trainyard_epoch": ("train", "epoch", "Epoch, counted from 1"),
    "trainyard_samples": ("train", "samples", "Training samples seen"),
    "trainyard_loss": ("train", "loss", "Training loss, mean over the steps of the last line of training metrics"),
    "trainyard_learning_rate": ("train", "lr", "Learning rate of the last step"),
    "trainyard_images_per_second": (
        "train", "images_per_second", "Training samples per second over all processes, waiting for data included"
    ),
    "trainyard_started_timestamp_seconds": ("start", "started", "Unix time of the first process's start"),
    "trainyard_last_step_timestamp_seconds": ("train", "time", "Unix time of the last line of training metrics"),
    "trainyard_last_checkpoint_timestamp_seconds": ("checkpoint", "time", "Unix time of the last checkpoint's end"),
    "trainyard_last_validation_timestamp_seconds": ("validate", "time", "Unix time of the last validation"),
    "trainyard_validation_loss": ("validate", "loss", "Loss over the validation split"),
    "trainyard_validation_top1_percent": ("validate", "top1", "Validation accuracy of the first guess, 0 to 100"),
    "trainyard_validation_top5_percent": ("validate", "top5", "Validation accuracy within five guesses, 0 to 100"),
    "trainyard_processes": ("start", "world_size", "Processes of the run"),
}  # fmt: skip


class Endpoint(Collector):
    """Serves the newest number of each kind, labelled with the run's name; what has not happened yet is not served."""

    def __init__(self, port: int, run: str, rank: int = 0, host: str = "") -> None:
        self._run, self._rank, self._host = run, rank, host
        self._values: dict[tuple[str, str], float] = {}
        self._seconds = dict.fromkeys(CAUSES, 0.0)
        self._whole: dict[str, float] = {}
        self._start: Event = {}
        self._ill = 0.0
        self._slowest: dict[str, Any] = {}
        self._ranks: list[tuple[list[str], list[float], float]] = []
        self._scraped: list[float] = []
        self._changed = 0.0
        registry = CollectorRegistry()
        registry.register(self)
        try:
            start_http_server(port, registry=registry)
        except OSError as error:
            raise UserError(
                f"metrics.port = {port}: cannot be opened ({error.strerror}); choose a free one, or 0"
            ) from error

    def show(self, event: Event) -> None:
        """Store the numbers of an event."""
        kind = event["event"]
        if kind in ("start", "train", "end"):
            for cause, seconds in event["seconds"].items():
                self._seconds[cause] += max(0.0, seconds)
            whole = event.get("seconds_total") or {
                cause: before + event["seconds"].get(cause, 0.0) for cause, before in self._whole.items()
            }
            self._whole = dict(whole)
        if kind == "start":
            self._start = event  # a scrape that comes just now shows seconds from here on
        if kind == "end" and event["status"] == "failed":
            self._ill = 1.0  # an end by ExitError is a failure of the loss
        if kind == "validate" and not math.isfinite(event["loss"]):
            self._ill = 1.0
        self._slowest = event.get("slowest", self._slowest)
        self.recall(event)
        self._changed = time.monotonic()

    def show_ranks(self, ranks: Sequence[dict[str, Any]], times: Sequence[Sequence[float]], held: list[float]) -> None:
        """Store each rank's seconds by part since its start (rank, part), and the bytes it holds (rank)."""
        self._ranks = [
            ([str(who["rank"]), who["host"], str(who["device"]).partition(":")[0]], list(row), memory)
            for who, row, memory in zip(ranks, times, held, strict=True)
        ]

    def recall(self, event: Event) -> None:
        """Store the numbers of an event of an earlier start."""
        kind = event["event"]
        numbers = {(kind, key): float(value) for key, value in event.items() if isinstance(value, int | float)}
        self._values = {**self._values, **numbers}

    def linger(self, longest: float = LAST_SECONDS) -> None:
        """Let Prometheus scrape the last numbers: wait about one scrape interval, if anything has scraped so far."""
        if len(self._scraped) < 2 or self._rank:
            return
        gaps = [after - before for before, after in itertools.pairwise(self._scraped)]
        end = time.monotonic() + min(longest, max(SHORTEST, 1.5 * max(gaps)))
        while self._scraped[-1] <= self._changed and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(SENDING)

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now; called by the server's thread for each scrape.

        It counts once its answer is made, which may take long on a busy machine: a run that is over then ends.
        """
        begun = time.monotonic()
        node = _gauge("trainyard_node_info", "A node of the run, by its first process", "run", "rank", "host")
        node.add_metric([self._run, str(self._rank), self._host], 1.0)
        yield node
        if self._rank == 0:
            yield from self._of_the_run()
        self._scraped = [*self._scraped[1 - SCRAPES :], begun]

    def _of_the_run(self) -> Iterator[Metric]:
        run, values = self._run, self._values  # `recall` replaces them: an answer has those of one moment
        for name, (kind, key, text) in GAUGES.items():
            if (value := values.get((kind, key))) is not None:
                gauge = _gauge(name, text, "run")
                gauge.add_metric([run], value)
                yield gauge
        if not self._start:
            return
        seconds = _counter(
            "trainyard_goodput_seconds", "Wall-clock seconds of the first process since its start, by cause; lost work "
            "and waiting for the restart before it included", "run", "cause",
        )  # fmt: skip
        whole = _gauge(
            "trainyard_run_seconds", "Wall-clock seconds of the run over all starts, by cause", "run", "cause"
        )
        for family, numbers in ((seconds, self._seconds), (whole, self._whole)):
            for cause, value in dict(numbers).items():
                family.add_metric([run, cause], round(value, 3))
            yield family
        info = InfoMetricFamily("trainyard_run", "The run", labels=["run"])
        info.add_metric([run], {key: str(self._start[key]) for key in ("model", "strategy")})
        yield info
        restarts = _counter("trainyard_restarts", "Starts of this run but the first one", "run")
        restarts.add_metric([run], self._start["restarts"])
        yield restarts
        ill = _gauge(
            "trainyard_loss_ill",
            "1 once a loss was NaN or infinite, or in training above log.max_loss, which ends the run",
            "run",
        )
        ill.add_metric([run], self._ill)
        yield ill
        yield from self._of_its_ranks()

    def _of_its_ranks(self) -> Iterator[Metric]:
        run = self._run
        if slow := self._slowest:
            slowest = _gauge("trainyard_slowest_rank", "Rank of the slowest process", "run")
            slowest.add_metric([run], slow["rank"])
            yield slowest
            behind = _gauge(
                "trainyard_slowest_rank_behind_ratio", "Share of the time for which the slowest process holds up the "
                "others, by what keeps it: data, compute or communication", "run", "cause",
            )  # fmt: skip
            for cause in ("data", "compute", "communication"):
                behind.add_metric([run, cause], slow["behind"] if slow["cause"] == cause else 0.0)
            yield behind
        if ranks := self._ranks:
            who = ("run", "rank", "host")
            spent = _counter(
                "trainyard_rank_seconds", "Seconds of each rank's steps since its start, by part", *who, "part"
            )
            held = _gauge(
                "trainyard_rank_memory_bytes", "Memory of each rank: on a GPU the most that was reserved on it, else "
                "what is resident", *who, "device",
            )  # fmt: skip
            for (rank, host, device), times, memory in ranks:
                for part, value in zip(PARTS, times, strict=True):
                    spent.add_metric([run, rank, host, part], round(value, 3))
                held.add_metric([run, rank, host, device], memory)
            yield from (spent, held)


def serve(port: int, run: str, place: Place, host: str) -> Endpoint | None:
    """Open the endpoint on the first process of a node, if a port is set."""
    if not port or place.local_rank:
        return None
    try:
        return Endpoint(port, run, place.rank, host)
    except UserError:
        if place.rank == 0:
            raise
        log.warning("metrics.port = %d is taken on this node, which has no endpoint then", port)
        return None


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=labels)
