"""What a run tells: Prometheus while it runs, W&B in its own file, progress lines, the launcher's environment."""

import base64
import contextlib
import itertools
import json
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Trainer, constants, environment, events, hold, wait_for_step
from forked import Forker
from prometheus_client.core import Metric

from tests import patience, ports
from tests.fakes import wandb_server
from tests.util import small_disk
from trainyard import config
from trainyard.core.exits import UserError
from trainyard.parallel.environment import Place
from trainyard.telemetry import prometheus, wandb
from trainyard.telemetry.clock import Clock
from trainyard.telemetry.metrics import rewind
from trainyard.telemetry.prometheus import Endpoint, serve

pytestmark = pytest.mark.takes(60)

# W&B's own service may be slow on a busy machine, without a server too
WAITS = constants({f"telemetry.wandb.{name}": patience.IDLE for name in ("INIT_SECONDS", "FINISH_SECONDS")})


@pytest.fixture(scope="module", autouse=True)
def loaded(forker: Forker) -> None:
    """Let each run find W&B's client imported."""
    forker.load("wandb")


def scrape(port: int, run: str) -> dict[str, float]:
    """The numbers of a run's endpoint by name, without the label that names the run: every one of them has it."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=patience.IDLE).read().decode()
    lines = text.splitlines()
    helped = {line.split()[2] for line in lines if line.startswith("# HELP")}
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert {name.partition("{")[0] for name in values} == helped  # each metric says what it is
    label = f'run="{run}"'
    assert [name for name in values if label not in name] == []
    plain = {name.replace(f",{label}", "").replace(f"{{{label}}}", ""): value for name, value in values.items()}
    return {name: float(value) for name, value in plain.items()}


def scrape_at(port: int, run: str, step: int) -> dict[str, float]:
    """The numbers once the endpoint shows this step, whose line in metrics.jsonl is written a moment before."""
    shown = lambda: scrape(port, run).get("trainyard_step", 0) >= step  # noqa: E731
    patience.wait(f"the endpoint shows step {step}", shown, patience.still)
    return scrape(port, run)


def wandb_history(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """Run id and history of a .wandb file: a LevelDB log of records (crc32, length, type) in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, run, rows, whole = path.read_bytes(), 7, "", [], b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        if kind == 0:
            break
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or its last part
            record, whole = Record.FromString(whole), b""
            run = record.run.run_id or run
            if items := record.history.item:
                rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return run, rows


def test_prometheus_and_wandb_over_two_starts(trainer: Trainer, tmp_path: Path) -> None:
    run, port, places, begun = tmp_path / "run", ports.free(), tmp_path / "places", time.time()
    over = {"metrics.port": port, "wandb.mode": "offline", "run.name": "little: a/b", "epochs": 3}
    quiet = {"WANDB_SILENT": "true", **WAITS}
    env = {"START_SECONDS": "0.5", "STEP_SECONDS": "0.05", **quiet, **hold(places, "10")}
    process = trainer.start(run, 2, env, **over)
    wait_for_step(run, 10, process)
    first = scrape_at(port, "little: a/b", 10)
    assert (first["trainyard_steps_planned"], first["trainyard_processes"]) == (24, 2)
    assert 0 < first["trainyard_loss"] < 3
    assert first["trainyard_learning_rate"] > 0
    assert first["trainyard_images_per_second"] == events(run, "train")[-1]["images_per_second"]
    assert first["trainyard_validation_top1_percent"] in [event["top1"] for event in events(run, "validate")]
    assert first['trainyard_goodput_seconds_total{cause="init"}'] > 0.5
    assert first['trainyard_goodput_seconds_total{cause="compute"}'] > 0.5
    assert first["trainyard_restarts_total"] == 0
    assert first["trainyard_slowest_rank"] in (0, 1)
    assert sum(value >= 0 for name, value in first.items() if name.startswith("trainyard_slowest_rank_behind")) == 3
    for rank in (0, 1):
        host = f'host="{socket.gethostname()}"'
        assert first[f'trainyard_rank_seconds_total{{{host},part="compute",rank="{rank}"}}'] > 0.5
        assert 2e7 < first[f'trainyard_rank_memory_bytes{{device="cpu",{host},rank="{rank}"}}'] < 1e11
    assert first["trainyard_loss_ill"] == 0
    started = first["trainyard_started_timestamp_seconds"]
    assert started > begun - 0.1  # the kernel rounds when a process started
    assert started < first["trainyard_last_step_timestamp_seconds"] <= time.time()
    assert started < first["trainyard_last_checkpoint_timestamp_seconds"] <= time.time()
    process.send_signal(signal.SIGTERM)
    output, _ = patience.communicate(process)
    assert process.returncode == 143, output

    (places / "10").unlink()
    process = trainer.start(run, 2, {**quiet, **hold(places, "1")}, **over)
    step = events(run, "train")[-1]["step"] + 1
    wait_for_step(run, step, process)
    second = scrape_at(port, "little: a/b", step)
    (places / "1").unlink()
    assert second["trainyard_restarts_total"] == 1
    assert second['trainyard_goodput_seconds_total{cause="restart_wait"}'] > 0
    assert second['trainyard_goodput_seconds_total{cause="lost"}'] == 0
    # the seconds of the whole run continue where the first start ended, the counters restart
    ended = events(run, "end")[0]["seconds_total"]
    for cause in ("compute", "init"):
        whole = second[f'trainyard_run_seconds{{cause="{cause}"}}']
        own = second[f'trainyard_goodput_seconds_total{{cause="{cause}"}}']
        assert own > 0
        assert whole - own == pytest.approx(ended[cause], abs=0.01)
    assert second["trainyard_last_validation_timestamp_seconds"] in [e["time"] for e in events(run, "validate")]
    output, _ = patience.communicate(process)
    assert process.returncode == 0, output

    files = sorted((run / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert len(files) == 2  # one for each start, of one process only
    histories = [wandb_history(path) for path in files]
    assert {name for name, _ in histories} == {"little--a-b"}  # the same run, so the same curve
    rows = [row for _, history in histories for row in history]
    losses = {row["_step"]: row["train/loss"] for row in rows if "train/loss" in row}
    assert losses == {event["step"]: event["loss"] for event in events(run, "train")}
    assert sorted(losses) == list(range(1, 25))
    top1 = [row["validate/top1"] for row in rows if "validate/top1" in row]
    assert top1 == [event["top1"] for event in events(run, "validate")]


def test_port_that_is_taken() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(UserError, match=r"metrics.port = \d+: cannot be opened \(.*\); choose a free one, or 0"):
            Endpoint(listener.getsockname()[1], "run")


def test_a_scrape_amid_an_event_has_no_metric_without_a_number() -> None:
    endpoint = Endpoint(0, "run")
    seen: list[Metric] = []

    class Seconds(dict[str, float]):
        def items(self) -> Any:
            seen.extend(endpoint.collect())
            return super().items()

    start = {"event": "start", "seconds": Seconds(init=1.0), "seconds_total": {"init": 1.0}, "restarts": 0}
    endpoint.show({**start, "model": "net", "strategy": "ddp"})
    assert seen
    seen.extend(endpoint.collect())
    assert [metric.name for metric in seen if not metric.samples] == []
    assert "trainyard_run_seconds" in [metric.name for metric in seen]


def test_a_run_that_is_scraped_ends_when_its_last_numbers_were_fetched(trainer: Trainer, tmp_path: Path) -> None:
    """Also one that ends on a NaN loss: Prometheus could not learn of it otherwise."""
    run, port, places = tmp_path / "run", ports.free(), tmp_path / "places"
    over = {"metrics.port": port, "optimizer.lr": 1e30, "epochs": 2}
    late = constants({"telemetry.prometheus.SHORTEST": patience.IDLE})  # as this test on a busy machine
    process = trainer.start(run, 1, {**late, **hold(places, "1")}, **over)
    seen: list[dict[str, float]] = []
    while process.poll() is None:
        with contextlib.suppress(OSError, HTTPException):  # it does not serve yet, or ends with an answer half sent
            seen.append(scrape(port, "run"))
        if len(seen) > 1:  # somebody comes regularly
            (places / "1").unlink(missing_ok=True)
        time.sleep(0.2)
    assert process.returncode == 77, process.communicate()[0]
    assert [numbers["trainyard_loss_ill"] for numbers in seen if "trainyard_loss_ill" in numbers][-1] == 1
    whole = json.loads((run / "summary.json").read_text())["seconds"]
    assert {cause: seen[-1][f'trainyard_run_seconds{{cause="{cause}"}}'] for cause in whole} == whole


def test_every_node_answers_and_only_the_first_tells_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    port, other = ports.free(), ports.free()
    assert serve(0, "run", Place(), "here") is None
    assert serve(port, "run", Place(1, 4, 1, 2), "here") is None  # not the first of its node
    assert serve(port, "run", Place(2, 4, 0, 2), "there") is not None
    assert scrape(port, "run") == {'trainyard_node_info{host="there",rank="2"}': 1}
    assert serve(port, "run", Place(4, 6, 0, 2), "there") is None  # a second node on one machine: no reason to end
    first = serve(other, "run", Place(0, 4, 0, 2), "here")
    assert first is not None
    first.recall({"event": "train", "step": 7})
    assert scrape(other, "run")["trainyard_step"] == 7
    clock = types.SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: pytest.fail("it waits"))
    monkeypatch.setattr(prometheus, "time", clock)
    first.linger()  # scraped only once: nobody comes regularly


def test_a_scrape_counts_once_its_answer_is_made() -> None:
    """Else a run that is over would end amid the answer with its last numbers."""
    endpoint = Endpoint(0, "run")
    answer = endpoint.collect()
    next(answer)
    assert endpoint._scraped == []
    assert list(answer) == []
    assert len(endpoint._scraped) == 1


def test_a_scrape_has_the_step_and_the_loss_of_one_line() -> None:
    """Though training writes the next line while the answer is made."""
    endpoint = Endpoint(0, "run")
    endpoint.recall({"event": "train", "step": 7, "loss": 0.7})
    answer = endpoint.collect()
    found = {metric.name: metric for metric in itertools.islice(answer, 2)}
    endpoint.recall({"event": "train", "step": 8, "loss": 0.8})
    found |= {metric.name: metric for metric in answer}
    assert [found[f"trainyard_{name}"].samples[0].value for name in ("step", "loss")] == [7, 0.7]


def test_a_run_waits_for_scrapes_that_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shortest wait is far longer here, since a busy machine may be late with what this test does."""
    pauses: list[float] = []
    clock = types.SimpleNamespace(
        monotonic=time.monotonic, sleep=lambda seconds: pauses.append(seconds) or time.sleep(seconds)
    )
    monkeypatch.setattr(prometheus, "time", clock)
    monkeypatch.setattr(prometheus, "SHORTEST", patience.IDLE)
    port = ports.free()
    first = serve(port, "run", Place(), "here")
    assert first is not None
    for _ in range(2):
        scrape(port, "run")  # a few milliseconds apart
    first.show({"event": "validate", "top1": 50.0, "loss": 1.0})
    ends = threading.Thread(target=first.linger, args=(patience.IDLE,))
    ends.start()
    patience.wait("it does not wait", lambda: len(pauses) > 20 or not ends.is_alive(), patience.still)
    assert ends.is_alive()
    assert scrape(port, "run")["trainyard_validation_top1_percent"] == 50
    ends.join()


def test_progress_is_plain_lines_where_nobody_watches(trainer: Trainer, tmp_path: Path) -> None:
    code, output = trainer.run(tmp_path / "run", 1, max_steps=8, epochs=None)
    assert code == 0, output
    lines = output.splitlines()
    assert "\x1b" not in output
    assert lines[0].startswith("starting little_models:net on 1 process: ")
    assert lines[1].startswith("little_models:net on 58 samples of 4 classes: 8 steps of 8, single on 1 processes")
    assert lines[2].startswith("step 1/8  epoch 1/1  loss ")
    assert any(line.startswith("epoch 1/1  validated 1003 samples: top1 ") for line in lines)
    assert lines[-1].startswith("finished: top1 ")


def test_two_nodes_are_joined_by_the_operators_variables(trainer: Trainer, tmp_path: Path) -> None:
    run, port = tmp_path / "run", str(ports.free())
    common = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port,
              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}  # fmt: skip
    (tmp_path / "base.yaml").write_text("max_steps: 4\n")
    settings = [f"--set={key}={value}" for key, value in trainer.settings(run).items() if key != "epochs"]
    options = ["--config", str(tmp_path / "base.yaml"), *settings]
    command = ["-m", "trainyard", "launch", "-m", "trainers.ddp", *options]
    nodes = []
    for node in ("0", "1"):
        nodes.append(trainer.python(*command, env={**common, "PET_NODE_RANK": node, "RANK": node}))
    outputs = [patience.communicate(node)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert "ddp on 2 processes" in outputs[0]
    assert "processes" not in outputs[1]


def test_rewind_drops_what_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = ['{"event": "train", "step": 4}', '{"event": "checkpoint", "step": 4}']
    lines += ['{"event": "validate", "step": 4, "epoch": 1}', '{"event": "train", "step": 5}', '{"event": "train", "st']
    path.write_text("\n".join(lines))
    assert rewind(path, step=4, validated=0) == 1
    assert path.read_text() == "\n".join(lines[:2]) + "\n"
    path.write_text(lines[3] + '\n{"event": "start", "step": 9}\n')
    assert rewind(path, step=4, validated=0) == 5  # starts are what the seconds of the whole run are reckoned from
    assert path.read_text() == '{"event": "start", "step": 9}\n'


def test_rewind_replaces_the_file_whatever_is_in_it(tmp_path: Path) -> None:
    """An older job that has it open writes on into a file without a name, also one that had written nothing yet."""
    path = tmp_path / "metrics.jsonl"
    assert rewind(path, step=0, validated=0) == 0
    assert not path.exists()
    for text in ("", '{"event": "train", "step": 4}\n'):
        path.write_text(text)
        with path.open("ab", buffering=0) as older:
            assert rewind(path, step=4, validated=0) == 0
            older.write(b"late\n")
        assert path.read_text() == text


def test_a_process_knows_when_it_was_started() -> None:
    began = time.monotonic()
    code = "from trainyard.telemetry.clock import process_start; print(process_start())"
    started = float(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT))
    assert began - 0.02 < started < time.monotonic()  # the kernel counts in hundredths


def test_every_second_has_a_cause() -> None:
    began = time.monotonic()
    clock = Clock(began)
    clock.begin()
    with clock.spent("data_wait"):
        time.sleep(0.05)
        with clock.spent("checkpoint"):
            time.sleep(0.1)
    time.sleep(0.02)
    asked = time.monotonic()
    seconds = clock.read()
    answered = time.monotonic()
    assert seconds["data_wait"] >= 0.05
    assert seconds["checkpoint"] >= 0.1
    assert seconds["other"] >= 0.02
    rounded = 0.01  # each of them is, to milliseconds
    assert asked - began - rounded < sum(seconds.values()) < answered - began + rounded


KEY = "0123456789" * 4


def mounted(folder: Path) -> dict[str, str]:
    """The environment by which a pod's trainer finds its key: as a file of a mounted Secret. It waits for W&B long."""
    (folder / "secrets" / "wandb").mkdir(parents=True)
    (folder / "secrets" / "wandb" / "WANDB_API_KEY").write_text(f"{KEY}\n")
    return {"TRAINYARD_SECRETS": str(folder / "secrets"), "WANDB_INIT_TIMEOUT": str(patience.IDLE), **WAITS}


def test_the_mounted_key_reports_online_and_an_outage_is_made_up_for(trainer: Trainer, tmp_path: Path) -> None:
    run, places = tmp_path / "run", tmp_path / "places"
    with wandb_server.running() as server:
        # after a long outage, as of a slow machine, W&B's pause before its next try is longer than a run may wait for
        again = {"WANDB__FILE_STREAM_RETRY_WAIT_MAX_SECONDS": "2", "WANDB_BASE_URL": server.url}
        process = trainer.start(run, 2, mounted(tmp_path) | again | hold(places, "2", "10"))
        wait_for_step(run, 2, process)
        server.down = True
        (places / "2").unlink()
        wait_for_step(run, 10, process)
        patience.wait("nothing is refused", lambda: server.refused, patience.still)
        server.down = False
        (places / "10").unlink()
        output, _ = patience.communicate(process)
    assert process.returncode == 0, output
    login = base64.b64encode(f"api:{KEY}".encode()).decode()
    assert server.keys == {f"Basic {login}"}, output
    rows = [row for row in server.history["run"] if "train/loss" in row]
    assert [row["_step"] for row in rows] == [event["step"] for event in events(run, "train")]
    for row, event in zip(rows, events(run, "train"), strict=True):
        assert row["train/loss"] == pytest.approx(event["loss"])
        assert row["train/images_per_second_per_process"] == pytest.approx(event["images_per_second"] / 2)
    assert KEY not in output
    assert all(KEY.encode() not in path.read_bytes() for path in run.rglob("*") if path.is_file())


def begin(settings: config.Config, say: Callable[[str], None]) -> Any | None:
    tree = config.as_tree(settings)
    return wandb.start(settings.wandb, tree, directory=settings.run.dir, name="run", say=say)


def test_no_fault_of_the_service_ends_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    settings = config.build({"recipe": "demo", "run": {"dir": str(tmp_path / "run")}}, {"wandb": {"mode": "offline"}})

    def gone(*_: Any, **__: Any) -> None:
        raise BrokenPipeError(32, "its service has ended")

    run = types.SimpleNamespace(log=gone, finish=gone, dir="/results/runs/one/wandb/run-1/files")
    wandb.report(run, {"event": "train", "step": 1, "loss": 1.0})
    wandb.finish(run, said.append, patience.IDLE)
    assert "Weights & Biases did not finish ([Errno 32] its service has ended): wandb sync" in said.pop()
    monkeypatch.setattr("wandb.init", gone)
    assert begin(settings, said.append) is None
    assert said.pop() == "Weights & Biases: [Errno 32] its service has ended; the run is not recorded there"
    monkeypatch.undo()
    monkeypatch.setenv("WANDB_BASE_URL", "ada:secret@localhost:8080")
    assert begin(settings, said.append) is None
    assert said.pop() == "Weights & Biases: wrong settings: base_url; the run is not recorded there"
    monkeypatch.setitem(sys.modules, "wandb", None)  # not installed
    assert begin(settings, said.append) is None
    assert "cannot be used (ModuleNotFoundError: " in said.pop()


def test_recording_offline_waits_for_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its client asks of its own service may take longer on a busy machine than a server is waited for."""
    asked: dict[str, float] = {}

    def init(*, mode: str, settings: Any, **_: Any) -> str:
        asked[mode] = settings.init_timeout
        if mode == "online":
            raise TimeoutError("no answer")
        return "a run"

    monkeypatch.setattr("wandb.init", init)
    monkeypatch.setattr("wandb.teardown", lambda: None)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "3")
    settings = config.build({"recipe": "demo", "run": {"dir": str(tmp_path)}}, {"wandb": {"mode": "online"}})
    assert begin(settings, lambda _: None) == "a run"
    assert asked == {"online": 3.0, "offline": wandb.INIT_SECONDS}


ALONE = """
import sys
from tests import patience
from trainyard import config
from trainyard.telemetry import wandb

wandb.INIT_SECONDS = patience.IDLE  # offline, where no server is waited for
settings = config.build({"recipe": "demo", "run": {"dir": sys.argv[1]}}, {"wandb": {"mode": "online"}})
run = wandb.start(settings.wandb, config.as_tree(settings), directory=sys.argv[1], name="run")
wandb.report(run, {"event": "train", "step": 1, "loss": 1.0})
wandb.finish(run, print, patience.IDLE)
print("the run goes on")
"""


@pytest.mark.parametrize("status", [401, 503, None], ids=["refuses", "is down", "answers nothing"])
def test_a_server_that_is_of_no_use_at_the_start_costs_a_line(
    forker: Forker, tmp_path: Path, status: int | None
) -> None:
    """And what is reported is recorded offline."""
    with wandb_server.running() as server, socket.create_server(("127.0.0.1", 0)) as silent:
        server.down, server.status = True, status or 0
        url = server.url if status else f"http://127.0.0.1:{silent.getsockname()[1]}"
        env = environment() | {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": url, "WANDB_INIT_TIMEOUT": "3"}
        done = forker.run([sys.executable, "-c", ALONE, str(tmp_path)], env=env, cwd=ROOT)
    *said, goes_on = done.stdout.splitlines()
    assert (done.returncode, goes_on) == (0, "the run goes on"), done
    assert len(said) == 1, done
    assert f"; the run is recorded offline: wandb sync {tmp_path}/wandb/offline-run-*" in said[0]
    (recorded,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert [row["_step"] for row in wandb_history(recorded)[1] if "train/loss" in row] == [1]


FULL = """
import sys
from trainyard import config
from trainyard.telemetry import wandb

settings = config.build({"recipe": "demo", "run": {"dir": sys.argv[1]}}, {"wandb": {"mode": "offline"}})
run = wandb.start(settings.wandb, config.as_tree(settings), directory=sys.argv[1], name="run")
if run is not None:
    for step in range(1, 2000):
        wandb.report(run, {"event": "train", "step": step, "loss": 1.0 / step})
    wandb.finish(run, print, wandb.FINISH_SECONDS)
print("the run goes on")
"""


def test_a_full_disk_under_its_folder_holds_no_run(tmp_path: Path) -> None:
    """The run directory's own records report that the disk is full (run/test_space.py)."""
    (tmp_path / "wandb").mkdir()
    script = '"$0" -c "$1" "$2"; echo "code $?"; df --output=avail "$2/wandb"'
    done = small_disk.run_on(tmp_path / "wandb", "64k", "sh", "-c", script, sys.executable, FULL, tmp_path)
    *_, goes_on, code, _, room = done.stdout.splitlines()
    assert (goes_on, code, room.strip()) == ("the run goes on", "code 0", "0"), done


def test_runs_of_one_name_in_two_namespaces_are_two_runs(tmp_path: Path) -> None:
    ids = {}
    for owner in ("", "team-a/run", "team-b/run"):
        (path := tmp_path / str(len(ids))).mkdir()
        ids[owner] = wandb.keep_id(path, "run: a/b", owner)
        (path / "metrics.jsonl").write_text("")
        for other in ("", "team-c/other"):  # a restart continues the curve, also when another release took the run over
            assert wandb.keep_id(path, "run: a/b", other) == ids[owner]
    assert wandb.keep_id(path, "another", "team-b/run") == wandb.run_id("another", "team-b/run")
    assert ids[""] == "run--a-b"
    assert len(set(ids.values())) == 3
    assert len(wandb.run_id("n" * 300, "team-a/run")) == wandb.LONGEST == len(wandb.run_id("n" * 300))


def test_a_run_begun_by_a_version_that_kept_no_id_continues_its_curve(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    assert wandb.keep_id(tmp_path, "run", "team-a/run") == "run"
    for ill in ("", "[]", '{"id": null}', '{"id": 5}'):
        (tmp_path / "wandb.json").write_text(ill)
        assert wandb.keep_id(tmp_path, "run", "") == "run"


def test_a_run_that_is_over_does_not_wait_for_a_server_that_is_not_there() -> None:
    said: list[str] = []
    over = threading.Event()
    run = types.SimpleNamespace(finish=over.wait, dir="/results/runs/one/wandb/run-1/files")
    wandb.finish(run, said.append, 0.1)
    over.set()
    assert said == [
        "Weights & Biases took not all numbers within 0 s: wandb sync /results/runs/one/wandb/run-1/files/.."
    ]
