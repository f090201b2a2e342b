"""A Prometheus text endpoint on the first process, when a port is set."""

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from trainers.exits import UserError
from trainers.telemetry.metrics import Event

GAUGES = {
    "step": "Optimizer steps done",
    "epoch": "Epoch, counted from 1",
    "samples": "Samples seen",
    "loss": "Loss, mean over the global batch",
    "lr": "Learning rate",
    "images_per_second": "Samples per second over all processes, waiting for data included",
    "top1": "Validation accuracy in percent, first guess",
    "top5": "Validation accuracy in percent, five guesses",
}


class Endpoint:
    """Serves the newest number of each kind."""

    def __init__(self, port: int) -> None:
        registry = CollectorRegistry()
        self._gauges = {
            (kind, key): Gauge(f"trainyard_{kind}_{key}", text, registry=registry)
            for kind in ("train", "validate")
            for key, text in GAUGES.items()
        }
        try:
            start_http_server(port, registry=registry)
        except OSError as error:
            raise UserError(
                f"metrics.port = {port}: cannot be opened ({error.strerror}); choose a free one, or 0"
            ) from error

    def show(self, event: Event) -> None:
        """Take over the numbers of an event."""
        for key, value in event.items():
            if gauge := self._gauges.get((event["event"], key)):
                gauge.set(float(value))
