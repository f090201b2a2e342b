"""Progress in the status of a TrainJob, where Kubeflow Trainer accepts it (its gate TrainJobStatus, alpha in 2.3).

Trainer then gives the pods the address of its status server, its CA and a token:

    KUBEFLOW_TRAINER_SERVER_URL      where to POST
    KUBEFLOW_TRAINER_SERVER_CA_CERT  file with the CA of its certificate
    KUBEFLOW_TRAINER_SERVER_TOKEN    file with the token, which the kubelet renews

A separate thread sends the newest numbers every few seconds, and `.status.trainerStatus` of the TrainJob shows them. A
server that is absent, slow or refuses costs one line of output and never delays training.
"""

import http.client
import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainyard.telemetry.metrics import Event

VARIABLES = tuple(f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))
EVERY = 10.0  # seconds between messages
LONGEST_PAUSE = 600.0  # seconds, after failures
AGAIN = 1.0  # seconds until a message is sent once more
TIMEOUT = 30.0  # seconds that one answer may take
LAST_SECONDS = 30.0  # that a run which has ended waits for its last message to be taken
SHOWN = ("loss", "top1", "top5", "images_per_second", "epoch", "step")


@dataclass
class TrainJobProgress:
    """How far a run of `total` steps is, computed from its events."""

    total: int
    step: int = 0
    left: float | None = None  # seconds
    metrics: dict[str, float] = field(default_factory=dict)
    _first: tuple[float, int] | None = None

    def see(self, event: Event) -> None:
        """Update from an event of the run."""
        if event["event"] not in ("train", "validate"):
            return
        now, self.step = float(event["time"]), int(event["step"])
        # validation measures another loss
        numbers = {key: event[key] for key in SHOWN if isinstance(event.get(key), int | float)}
        self.metrics |= {
            key: float(value) for key, value in numbers.items() if event["event"] == "train" or "top" in key
        }
        then, before = self._first = self._first or (now, self.step)
        if self.step > before:
            self.left = max(0.0, (now - then) / (self.step - before) * (self.total - self.step))

    def message(self, now: datetime) -> dict[str, Any]:
        """Return what is sent, in the words of Trainer's API."""
        status: dict[str, Any] = {
            "progressPercentage": min(100, 100 * self.step // max(1, self.total)),
            "metrics": [{"name": name, "value": f"{value:.6g}"} for name, value in self.metrics.items()],
            "lastUpdatedTime": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        if self.left is not None:
            status["estimatedRemainingSeconds"] = min(round(self.left), (1 << 31) - 1)
        return {"trainerStatus": status}


class Reporter:
    """Sends a run's progress; nothing that happens to it reaches the training."""

    def __init__(self, url: str, ca: Path, token: Path, total: int, say: Callable[[str], None]) -> None:
        self._url, self._ca, self._token, self._say = url, ca, token, say
        self._progress = TrainJobProgress(total)
        self._wake = threading.Condition()
        self._newer = self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="trainjob")
        self._thread.start()

    def show(self, event: Event) -> None:
        """Have an event of the run sent with the next message."""
        with self._wake:
            self._progress.see(event)
            self._newer = self._newer or event["event"] in ("train", "validate")
            self._wake.notify()

    def close(self, seconds: float) -> None:
        """Send what is new, waiting for so many seconds at most."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        pause, failed, taken = EVERY, False, False
        while message := self._next():
            why = self._send(message)
            if why and taken:  # by a server that answers: the last message has none after it
                time.sleep(AGAIN)
                why = self._send(message)
            taken = not why
            if why and not failed:
                self._say(f"the TrainJob's status does not show progress: {why}; training is not affected")
            failed = failed or bool(why)
            pause = min(2 * pause, LONGEST_PAUSE) if why else EVERY
            with self._wake:
                self._wake.wait_for(lambda: self._closing, pause)

    def _send(self, message: Mapping[str, Any]) -> str:
        return send(self._url, self._ca, self._token, message, TIMEOUT)

    def _next(self) -> dict[str, Any] | None:
        """Return the next message, once there is one; none when all has been sent and the run is over."""
        with self._wake:
            self._wake.wait_for(lambda: self._newer or self._closing)
            if not self._newer:
                return None
            self._newer = False
            return self._progress.message(datetime.now(UTC))


def send(url: str, ca: Path, token: Path, message: Mapping[str, Any], timeout: float) -> str:
    """Send a message; empty when it was taken, else why it was not. The token goes to a server with that CA alone."""
    try:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            return "its server's address is not https"
        context = ssl.create_default_context(cafile=str(ca))
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=context)
        try:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token.read_text().strip()}"}
            connection.request("POST", parts.path, json.dumps(message), headers)
            answer = connection.getresponse()
            return "" if answer.status == http.client.OK else f"its server answers {answer.status} {answer.reason}"
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException) as error:  # ssl.SSLError is an OSError
        return f"its server cannot be reached ({getattr(error, 'strerror', None) or type(error).__name__})"


def start(total: int, say: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> Reporter | None:
    """Report the progress of a run of `total` steps, where Trainer asks for it."""
    url, ca, token = (environ.get(name, "") for name in VARIABLES)
    return Reporter(url, Path(ca), Path(token), total, say) if url and ca and token else None
