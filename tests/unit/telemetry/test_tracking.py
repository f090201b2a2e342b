"""TensorBoard and MLflow: their own readers show the numbers of metrics.jsonl, and no fault of theirs ends a run."""

import base64
import contextlib
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import Trainer, constants, events, hold, wait_for_step
from forked import Forker

from tests import patience, ports
from tests.fakes import loopback, mlflow_server
from trainyard import config
from trainyard.config.sections.running import TensorboardSettings
from trainyard.telemetry import mlflow, outbox, tensorboard
from trainyard.telemetry.metrics import read_events
from trainyard.telemetry.outbox import Outbox

if TYPE_CHECKING:  # imported late: each worker that collects them would take seconds
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

pytestmark = pytest.mark.takes(60)
TOKEN = "token-of-nobody"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server.running(tmp_path_factory.mktemp("mlflow"), ports.free()) as url:
        yield url


@pytest.fixture(scope="module", autouse=True)
def loaded(forker: Forker) -> None:
    """Let each run find both clients imported."""
    forker.load("mlflow.tracking", "tensorboardX.summary", **mlflow.DEFAULTS)


@pytest.fixture(autouse=True)
def quick_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of the client, which a run makes in its own environment."""
    for variable, value in mlflow.DEFAULTS.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", str(round(patience.IDLE)))  # a busy server is no outage
    for variable in (mlflow.URI, *mlflow.LOGIN):
        monkeypatch.delenv(variable, raising=False)


def read_folder(folder: Path) -> Any:
    """The folder as TensorBoard's own reader has it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


def client_of(server: str) -> "MlflowClient":
    """MLflow's own client."""
    from mlflow.tracking import MlflowClient

    return MlflowClient(server)


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of each scalar."""
    found = read_folder(folder)
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def expected(run: Path, kind: str, key: str) -> list[tuple[int, float]]:
    return [(event["step"], event[key]) for event in events(run, kind)]


def runs_of(client: "MlflowClient", experiment: str) -> "list[Run]":
    from mlflow.entities import ViewType

    found = client.get_experiment_by_name(experiment)
    return list(client.search_runs([found.experiment_id], run_view_type=ViewType.ALL)) if found else []


def history(client: "MlflowClient", run: "Run", key: str) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, key)]


def settings_of(run: Path, **over: Any) -> config.Config:
    return config.build({"recipe": "demo", "run": {"dir": str(run)}}, over)


def begin(settings: config.Config, run: Path, say: Callable[[str], None]) -> Outbox | None:
    return mlflow.start(settings.mlflow, config.as_tree(settings), run, "run", say)


def record(run: Path, steps: range, **first: Any) -> None:
    """Append train events to metrics.jsonl, as a run does."""
    run.mkdir(exist_ok=True)
    with (run / "metrics.jsonl").open("a") as file:
        for step in steps:
            event = {"event": "train", "step": step, "epoch": 1, "time": 1e9 + step, "loss": 1 / step, **first}
            file.write(json.dumps(event) + "\n")


def test_a_killed_run_is_one_curve_in_both(trainer: Trainer, server: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    over = {"tensorboard.enabled": True, "mlflow.uri": server, "mlflow.experiment": "killed", "epochs": 3,
            "checkpoint.every_steps": 8, "run.name": "little: a/b"}  # fmt: skip
    client = client_of(server)
    process = trainer.start(run, 2, hold(tmp_path / "places", "9"), **over)
    wait_for_step(run, 9, process)

    def sent() -> bool:  # the step after the checkpoint, which will be done again
        found = runs_of(client, "killed")
        return bool(found) and any(step >= 9 for step, _ in history(client, found[0], "train/loss"))

    patience.wait("MLflow has step 9", sent, lambda: patience.processor_seconds(process.pid))
    os.killpg(process.pid, 9)
    process.communicate()
    assert events(run, "train")[-1]["step"] % 8, "killed just after a checkpoint: nothing is done again"
    # MLflow's client may take longer to load than all of its steps, and the minute that a run waits at its end
    output = trainer.run(run, 2, constants({"telemetry.outbox.LAST_SECONDS": patience.IDLE}), **over)
    assert output[0] == 0, output[1]
    assert "steps are done again" in output[1]

    board = curves(run / "tensorboard")
    (found,) = runs_of(client, "killed")
    for kind, keys in {"train": ("loss", "lr", "samples"), "validate": ("loss", "top1", "top5")}.items():
        for key in keys:
            name, truth = f"{kind}/{key}", expected(run, kind, key)
            assert len(truth) == {"train": 24, "validate": 3}[kind]
            assert [step for step, _ in board[name]] == [step for step, _ in truth]
            assert [value for _, value in board[name]] == pytest.approx([value for _, value in truth])
            assert history(client, found, name) == truth, name
    rates = [(event["step"], event["images_per_second"] / 2) for event in events(run, "train")]
    name = "train/images_per_second_per_process"
    assert [value for _, value in board[name]] == pytest.approx([value for _, value in rates])
    assert history(client, found, name)[-1] == rates[-1]
    assert (found.info.run_name, found.info.status) == ("little: a/b", "FINISHED")
    assert found.data.params["model.name"] == "little_models:net"
    assert sum(path.stat().st_size > 0 for path in (run / "tensorboard").iterdir()) == 1
    assert f"{server}/#/experiments/{found.info.experiment_id}/runs/{found.info.run_id}" in output[1]


def refused(trainer: Trainer, run: Path, env: dict[str, str], **over: Any) -> tuple[int, str]:
    """Train two steps: exit code and output.

    The second one is done once MLflow's refusal was said: at its end a run waits a minute for that, and MLflow's client
    may take longer to load.
    """
    places, log = run.parent / "places", run.parent / "log"
    with log.open("w") as file:
        two: dict[str, Any] = {"max_steps": 2, "epochs": None}
        last = constants({"telemetry.outbox.LAST_SECONDS": patience.IDLE})  # TensorBoard may load as long
        process = trainer.start(run, 1, env | last | hold(places, "1"), stdout=file, **two, **over)
    said = lambda: process.poll() is not None or "MLflow takes no numbers" in log.read_text()  # noqa: E731
    patience.wait("MLflow refuses nothing", said, lambda: patience.processor_seconds(process.pid))
    (places / "1").unlink()
    patience.communicate(process)
    return process.returncode, log.read_text()


def test_services_that_are_not_there_cost_a_run_one_line_each(trainer: Trainer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "tensorboard").write_text("a file where the folder should be")
    port = ports.free()
    over = {"tensorboard.enabled": True, "mlflow.uri": f"http://127.0.0.1:{port}"}
    code, output = refused(trainer, run, {}, **over)
    assert code == 0, output
    lines = [line for line in output.splitlines() if "takes no numbers" in line]
    assert len(lines) == 2, output
    assert sum("MLflow takes no numbers" in line and str(port) in line for line in lines) == 1
    assert sum("TensorBoard takes no numbers (FileExistsError" in line for line in lines) == 1


@contextmanager
def relayed(port: int, server: str) -> Iterator[None]:
    """Pass what comes to a port on to the server; after the block all connections are cut, and none is taken."""
    ends: list[socket.socket] = []

    def pass_on(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := one.recv(1 << 16):
                other.sendall(content)
            other.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client = listener.accept()[0]
                pair = client, socket.create_connection(("127.0.0.1", int(server.rpartition(":")[2])))
                ends.extend(pair)
                for ways in (pair, pair[::-1]):
                    threading.Thread(target=pass_on, args=ways, daemon=True).start()

    with socket.create_server(("127.0.0.1", port)) as listener:
        accepts = threading.Thread(target=accept)
        accepts.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepts.join()
            for end in ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


def test_an_outage_is_made_up_for(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FIRST_PAUSE", 0.2)
    monkeypatch.setattr(outbox, "LONGEST_PAUSE", 1.0)
    monkeypatch.setattr(outbox, "EVERY", 0.1)
    run, port, said = tmp_path / "run", ports.free(), []
    record(run, range(1, 4))
    settings = settings_of(run, mlflow={"uri": f"http://127.0.0.1:{port}", "experiment": "outage"})
    client = client_of(server)
    box = begin(settings, run, said.append)
    assert box is not None
    patience.wait("the outage is said", lambda: said, patience.still)
    with relayed(port, server):
        latest = lambda: [step for one in runs_of(client, "outage") for step, _ in history(client, one, "train/loss")]  # noqa: E731
        patience.wait("the first steps are there", lambda: latest() == [1, 2, 3], patience.still)
        # the server may be gone before it has answered the one who sent them
        patience.wait("it is said", lambda: "MLflow takes numbers again" in said, patience.still)
    record(run, range(4, 7))
    box.wake()
    patience.wait("the second outage is said", lambda: said[-1].startswith("MLflow takes no numbers"), patience.still)
    with relayed(port, server):
        box.finish()
        assert box.join(patience.IDLE), said
    (found,) = runs_of(client, "outage")
    assert history(client, found, "train/loss") == [(step, 1 / step) for step in range(1, 7)]
    assert [line for line in said if "/#/" not in line and "takes no numbers" not in line] == (
        ["MLflow takes numbers again"] * 2
    )
    assert sum("takes no numbers" in line for line in said) == 2


def test_a_server_that_takes_requests_and_answers_none_holds_no_run(tmp_path: Path) -> None:
    run, said = tmp_path / "run", []
    record(run, range(1, 3))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        box = begin(settings_of(run, mlflow={"uri": uri}), run, said.append)
        assert box is not None
        with silent.accept()[0] as connection:
            assert connection.recv(1), "it has asked"
            record(run, range(3, 5))
            box.wake()
            outbox.close([box], said.append, 0.1)
            assert said == ["MLflow took not all numbers within 0 s"]
    assert box.join(patience.IDLE) is False
    assert not box._thread.is_alive()


def test_a_full_disk_loses_nothing_of_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FIRST_PAUSE", 0.1)
    run, said = tmp_path / "run", []
    record(run, range(1, 400))
    (run / "tensorboard").mkdir()
    (run / "tensorboard" / "full").symlink_to("/dev/full")
    names = ["full"]
    named = tensorboard._file_name
    monkeypatch.setattr(tensorboard, "_file_name", lambda *given: names.pop() if names else named(*given))
    box = tensorboard.start(TensorboardSettings(enabled=True), config.as_tree(settings_of(run)), run, said.append)
    assert box is not None
    patience.wait("it writes again", lambda: len(said) == 2, patience.still)
    box.finish()
    assert box.join(patience.IDLE)
    assert said[0].startswith("TensorBoard takes no numbers (OSError: [Errno 28] No space left on device")
    assert said[1] == "TensorBoard takes numbers again"
    (run / "tensorboard" / "full").unlink()
    assert [step for step, _ in curves(run / "tensorboard")["train/loss"]] == list(range(1, 400))


def test_a_tensorboard_that_looks_on_sees_each_step_once(tmp_path: Path) -> None:
    """Its reader has shown the first start's file when the second one replaces it; this node's clock is behind."""
    run, said = tmp_path / "run", []
    folder = run / "tensorboard"

    def write() -> None:
        box = tensorboard.start(TensorboardSettings(enabled=True), config.as_tree(settings_of(run)), run, said.append)
        assert box is not None
        box.finish()
        assert box.join(patience.IDLE), said

    record(run, range(1, 10))
    write()
    (first,) = folder.iterdir()
    later = folder / first.name.replace(first.name.split(".")[3], "4000000000")
    first.rename(later)
    reader = read_folder(folder)
    assert [one.step for one in reader.Scalars("train/loss")] == list(range(1, 10))
    (run / "metrics.jsonl").write_text("".join((run / "metrics.jsonl").read_text().splitlines(keepends=True)[:6]))
    record(run, range(7, 13))
    write()
    assert later.stat().st_size == 0
    (second,) = set(folder.iterdir()) - {later}
    assert second.name > later.name
    assert [one.step for one in reader.Reload().Scalars("train/loss")] == list(range(1, 13))
    text = reader.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "experiment: trainyard" in text


@contextmanager
def refusing(status: int) -> Iterator[tuple[str, list[str]]]:
    """A server that answers all requests with a status; its address, and the Authorization headers it has seen."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    with loopback.serving(Handler) as listener:
        yield f"http://127.0.0.1:{listener.server_port}", seen


def test_the_mounted_token_reaches_a_server_that_refuses_and_no_record(trainer: Trainer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (tmp_path / "secrets" / "mlflow").mkdir(parents=True)
    (tmp_path / "secrets" / "mlflow" / "MLFLOW_TRACKING_TOKEN").write_text(f"{TOKEN}\n")
    with refusing(401) as (url, seen):
        code, output = refused(trainer, run, {"TRAINYARD_SECRETS": str(tmp_path / "secrets"), mlflow.URI: url})
    assert code == 0, output
    assert set(seen) == {f"Bearer {TOKEN}"}
    assert sum("MLflow takes no numbers" in line for line in output.splitlines()) == 1, output
    assert TOKEN not in output
    assert all(TOKEN.encode() not in path.read_bytes() for path in run.rglob("*") if path.is_file())


@pytest.mark.parametrize("status", [401, 404, 500])
def test_a_password_in_the_environments_address_is_sent_and_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], status: int
) -> None:
    """Whatever the server refuses by; that is said once, however often it is tried."""
    monkeypatch.setattr(outbox, "FIRST_PAUSE", 0.1)
    run, said = tmp_path / "run", []
    record(run, range(1, 3))
    for variable in mlflow.LOGIN:  # which it sets from the address
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    with refusing(status) as (url, seen):
        monkeypatch.setenv(mlflow.URI, url.replace("//", "//ada:se%40cret@"))
        box = begin(settings_of(run), run, said.append)
        assert box is not None
        patience.wait(
            "it tries again", lambda: said and len(seen) > 4, patience.still
        )  # each time two requests at most
        outbox.close([box], said.append, patience.IDLE)
    assert set(seen) == {f"Basic {base64.b64encode(b'ada:se@cret').decode()}"}
    assert said[0].startswith("MLflow takes no numbers")
    assert len(said) == 2
    assert "took not all numbers" in said[1]
    assert all("cret" not in text for text in (*said, *capfd.readouterr()))


def test_off_and_addresses_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, said = tmp_path / "run", []
    record(run, range(1, 2))
    assert begin(settings_of(run), run, said.append) is None
    monkeypatch.setenv(mlflow.URI, "http://127.0.0.1:1")
    assert begin(settings_of(run, mlflow={"mode": "off"}), run, said.append) is None
    assert said == []
    monkeypatch.setenv(mlflow.URI, "databricks")
    assert begin(settings_of(run), run, said.append) is None
    assert said == [
        "MLflow: MLFLOW_TRACKING_URI is not the address of a server, http://... or https://...: nothing is sent"
    ]


def test_a_run_that_was_deleted_or_moved_to_another_experiment_is_sent_whole(server: str, tmp_path: Path) -> None:
    run, said = tmp_path / "run", []
    record(run, range(1, 4))

    def send(experiment: str) -> None:
        settings = settings_of(run, mlflow={"uri": server, "experiment": experiment})
        box = begin(settings, run, said.append)
        assert box is not None
        box.finish()
        assert box.join(patience.IDLE), said

    client = client_of(server)
    send("here")
    send("here")
    (first,) = runs_of(client, "here")
    client.delete_run(first.info.run_id)
    send("here")
    send("there")
    again = [one for one in runs_of(client, "here") if one.info.run_id != first.info.run_id]
    for one in (first, *again, *runs_of(client, "there")):
        assert [step for step, _ in history(client, one, "train/loss")] == [1, 2, 3]
    assert len(again) == 1


def test_a_line_without_its_end_waits_for_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    record(run, range(1, 3))
    path = run / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with path.open("rb") as file:
        assert [event["step"] for event in outbox.read_portion(file)] == [1]
        path.write_bytes(whole)
        assert [event["step"] for event in outbox.read_portion(file)] == [2]
        assert outbox.read_portion(file) == []
    assert len(read_events(path)) == 2


def test_what_a_service_raises_ends_nothing(tmp_path: Path) -> None:
    run, said = tmp_path / "run", []
    record(run, range(1, 3))

    @contextmanager
    def missing() -> Iterator[outbox.Deliver]:
        raise ModuleNotFoundError("No module named 'mlflow'")
        yield

    box = Outbox("MLflow", run / "metrics.jsonl", missing, said.append)
    outbox.close([box], said.append, patience.IDLE)
    first = (
        "MLflow takes no numbers (ModuleNotFoundError: No module named 'mlflow'); the run continues, and tries again"
    )
    assert said[0] == first
    assert said[1].startswith("MLflow took not all numbers within")
    shutil.rmtree(run)
