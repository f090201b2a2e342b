"""Progress in a TrainJob's status: what is sent over real TLS, and what a server that fails costs (one line)."""

import functools
import json
import re
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from conftest import constants, events
from fleet import Fleet

from tests import patience, ports
from tests.fakes import loopback
from trainyard.telemetry import trainjob
from trainyard.telemetry.trainjob import Reporter, TrainJobProgress, send

TOKEN = "not-a-secret-token"
PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/vision/trainjobs/run/status"


class Server:
    """A status server on loopback that keeps what it is sent, and answers as it is told."""

    def __init__(self, folder: Path) -> None:
        self.messages: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.status, self.answered = 200, 0
        self.statuses: list[int] = []  # of the next answers
        self.answers = threading.Event()  # while it is not set, what is sent has no answer
        self.answers.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == PATH
                outer.tokens.append(self.headers["Authorization"])
                outer.messages.append(json.loads(content))
                outer.answers.wait(patience.IDLE)
                self.send_response(outer.statuses.pop() if outer.statuses else outer.status)
                self.end_headers()
                outer.answered += 1

            def log_message(self, *_: object) -> None:
                return

        self._server = loopback.Server(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "ca.crt", folder / "key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}{PATH}"

    def close(self) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()


def certificate(folder: Path) -> Path:
    """A certificate for 127.0.0.1 that signs itself; returns its file."""
    folder.mkdir()
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=status"]
    files = ["-keyout", str(folder / "key"), "-out", str(folder / "ca.crt"), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *files], check=True, capture_output=True)
    return folder / "ca.crt"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("tls") / "own")


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture
def server(ca: Path) -> Iterator[Server]:
    found = Server(ca.parent)
    yield found
    found.close()


def train_event(step: int, when: float) -> dict[str, Any]:
    return {"event": "train", "step": step, "epoch": 1, "time": when, "loss": 1.25, "images_per_second": 99.5}


def test_percentage_time_left_and_metrics_follow_from_the_events() -> None:
    progress, now = TrainJobProgress(200), datetime(2026, 11, 21, 12, tzinfo=UTC)
    progress.see({"event": "start", "step": 0, "time": 1000.0, "loss": 9})
    progress.see(train_event(50, 1010.0))
    assert "estimatedRemainingSeconds" not in progress.message(now)["trainerStatus"]
    progress.see(train_event(100, 1030.0))
    progress.see({"event": "validate", "step": 100, "epoch": 1, "time": 1031.0, "loss": 3.5, "top1": 71.5, "top5": 95})
    sent = progress.message(now)["trainerStatus"]
    assert sent["progressPercentage"] == 50
    assert sent["estimatedRemainingSeconds"] == 42  # 100 steps at 21 s for 50
    assert sent["lastUpdatedTime"] == "2026-11-21T12:00:00Z"
    metrics = {one["name"]: one["value"] for one in sent["metrics"]}
    assert metrics == {
        "loss": "1.25", "top1": "71.5", "top5": "95", "images_per_second": "99.5", "epoch": "1", "step": "100"
    }  # fmt: skip
    progress.see(train_event(199, 1100.0))
    assert progress.message(now)["trainerStatus"]["progressPercentage"] == 99
    progress.see(train_event(200, 1101.0))
    last = progress.message(now)["trainerStatus"]
    assert (last["progressPercentage"], last["estimatedRemainingSeconds"]) == (100, 0)


def run_with(server_url: str, ca: Path, token: Path, fleet: Fleet, run: Path) -> str:
    """Train on two processes with the variables that Trainer sets; all that was printed.

    The server may be late. Between the first message and the last one there is none, however long the run takes: one
    that came amid a validation would have the percentage of the one after it.
    """
    values = dict(zip(trainjob.VARIABLES, (server_url, str(ca), str(token)), strict=True))
    patient = constants({f"telemetry.trainjob.{name}": patience.IDLE for name in ("EVERY", "TIMEOUT", "LAST_SECONDS")})
    codes, output = fleet.wait(fleet.start(run, 2, env=values | patient))
    assert codes == [0, 0], output
    return output


def test_a_run_shows_its_progress_from_the_first_process_to_the_end(
    server: Server, ca: Path, token: Path, fleet: Fleet, tmp_path: Path
) -> None:
    output = run_with(server.url, ca, token, fleet, tmp_path / "run")
    assert set(server.tokens) == {f"Bearer {TOKEN}"}
    sent = [one["trainerStatus"] for one in server.messages]
    percent = [one["progressPercentage"] for one in sent]
    assert percent == sorted(percent)
    assert len(percent) == len(set(percent)), "one process alone reports, and what is new"
    assert (percent[-1], sent[-1]["estimatedRemainingSeconds"]) == (100, 0)
    last = {one["name"]: float(one["value"]) for one in sent[-1]["metrics"]}
    assert last["top1"] == pytest.approx(events(tmp_path / "run", "validate")[-1]["top1"], rel=1e-4)
    assert last["step"] == events(tmp_path / "run", "train")[-1]["step"]
    assert last["images_per_second"] > 0
    kept = output + "".join(path.read_text() for path in (tmp_path / "run").rglob("*.log"))
    assert TOKEN not in kept
    assert "does not show progress" not in kept


def test_a_server_that_refuses_costs_a_run_one_line(
    server: Server, ca: Path, token: Path, fleet: Fleet, tmp_path: Path
) -> None:
    server.status = 403
    output = run_with(server.url, ca, token, fleet, tmp_path / "run")
    assert re.findall(r"(?m)^.*does not show progress.*$", output) == [
        "the TrainJob's status does not show progress: its server answers 403 Forbidden; training is not affected"
    ]
    assert TOKEN not in output


def test_what_keeps_a_message_from_its_server_is_named(server: Server, ca: Path, token: Path, tmp_path: Path) -> None:
    tell = functools.partial(send, message={"trainerStatus": {}}, timeout=patience.IDLE)
    assert tell(server.url, ca, token) == ""
    absent = f"https://127.0.0.1:{ports.free()}{PATH}"
    assert tell(absent, ca, token) == "its server cannot be reached (Connection refused)"
    unknown = "Name or service not known|Temporary failure in name resolution"  # the second where no resolver answers
    said = tell(f"https://status.invalid{PATH}", ca, token)
    assert re.fullmatch(rf"its server cannot be reached \(({unknown})\)", said), said
    assert tell(server.url.replace("https", "http"), ca, token) == "its server's address is not https"
    assert "No such file" in tell(server.url, ca, tmp_path / "none")
    server.status = 404
    assert tell(server.url, ca, token) == "its server answers 404 Not Found"
    server.status = 200
    server.answers.clear()
    assert "reached (TimeoutError)" in tell(server.url, ca, token, timeout=0.2)
    server.answers.set()
    (secret := tmp_path / "secret").write_text("another-token")  # the message before may arrive late
    assert "cannot be reached" in tell(server.url, certificate(tmp_path / "other"), secret)
    assert set(server.tokens) == {f"Bearer {TOKEN}"}, "the token went to a server with another certificate"


def test_one_line_is_said_and_the_end_waits_no_longer_than_it_may(
    server: Server, ca: Path, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainjob, "EVERY", 0.01)
    monkeypatch.setattr(trainjob, "TIMEOUT", 2 * patience.IDLE)
    said: list[str] = []
    server.status = 500
    reporter = Reporter(server.url, ca, token, 100, said.append)
    for step in range(1, 6):
        reporter.show(train_event(step, time.time()))
        patience.wait("an answer", lambda count=step: server.answered == count, patience.still)
    assert len(said) == 1
    server.answers.clear()
    reporter.show(train_event(6, time.time()))
    patience.wait("a message", lambda: len(server.messages) == 6, patience.still)
    reporter.close(0.5)
    assert server.answered == 5, "it has waited for the answer"


def test_the_last_message_is_sent_once_more_to_a_server_that_took_those_before(
    server: Server, ca: Path, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainjob, "AGAIN", 0.01)
    said: list[str] = []
    reporter = Reporter(server.url, ca, token, 10, said.append)
    reporter.show(train_event(1, 0.0))
    patience.wait("no message", lambda: server.answered == 1, patience.still)
    server.statuses[:] = [503]
    reporter.show(train_event(10, 1.0))
    reporter.close(patience.IDLE)
    assert [message["trainerStatus"]["progressPercentage"] for message in server.messages] == [10, 100, 100]
    assert said == []


def test_nothing_is_started_where_trainer_asks_for_nothing(ca: Path, token: Path) -> None:
    values = dict(zip(trainjob.VARIABLES, ("https://127.0.0.1:1/", str(ca), str(token)), strict=True))
    assert trainjob.start(1, print, {}) is None
    assert trainjob.start(1, print, {key: value for key, value in values.items() if "TOKEN" not in key}) is None
    found = trainjob.start(1, print, values)
    assert found is not None
    found.close(patience.IDLE)
