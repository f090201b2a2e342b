"""What is no state of training never keeps a run from resuming, whatever has become of its bytes.

Each record is read by all that read it at a start or at an end: none of them may raise, and what is whole counts.
"""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import starting

from trainyard import config, report
from trainyard.config import Config
from trainyard.core.exits import Exit, ExitError
from trainyard.core.storage import storage
from trainyard.run import checkpoint, fence, starts
from trainyard.run.recorder import rewind_all
from trainyard.telemetry import beats
from trainyard.telemetry.clock import CAUSES, Clock
from trainyard.telemetry.goodput import settle
from trainyard.telemetry.metrics import numbers, read_events
from trainyard.telemetry.outbox import read_portion
from trainyard.telemetry.prometheus import Endpoint

STORED = Path(__file__).parents[1] / "run" / "stored" / "ddp"
SECONDS = dict.fromkeys(CAUSES, 1.5)
FURTHER: list[dict[str, Any]] = [
    {"event": "validate", "step": 4, "epoch": 1, "time": 1795314704.1, "samples": 9, "loss": 0.5, "top1": 9.5,
     "top5": 20.0, "correct": 2},
    {"event": "start", "step": 3, "epoch": 1, "time": 1795314705.0, "started": 1795314704.5, "idle": 0.0,
     "seconds": SECONDS, "phases": {"repeated": 1.5, "away": 2.5, "loading": 0.5}},
    {"event": "resume", "step": 3, "epoch": 1, "time": 1795314705.1, "lost_steps": 1, "lost_seconds": 0.1},
    {"event": "train", "step": 5, "epoch": 1, "time": 1795314706.1, "samples": 40, "loss": 0.4, "lr": 0.1,
     "images_per_second": 7.5, "seconds": SECONDS, "joules": {"gpus": 5}},
    {"event": "end", "step": 5, "epoch": 1, "time": 1795314707.1, "status": "stopped", "seconds": SECONDS,
     "seconds_total": SECONDS},
]  # fmt: skip
WHOLE = (STORED / "metrics.jsonl").read_bytes() + b"".join(json.dumps(line).encode() + b"\n" for line in FURTHER)
ILL = [
    b"12", b"[]", b'"text"', b"null", b"{}", b"\xff\xfe", b'{"step": "4"}', b'{"event": 5, "step": 4, "time": 1.0}',
    b'{"event": "train"}', b'{"event": "start", "step": 0, "time": 1.0}', b'{"event": "train", "step": 4, "time": "x"}',
    b'{"event": "end", "step": 5, "time": 1.0}', b'{"event": "train", "step": -4, "time": 1.0}', b"[" * 100_000,
    b'{"event": "train", "step": 4, "time": 1.0, "seconds": {"init": null}}', b'{"event": "train", "step": true}',
    b'{"event": "train", "step": 4, "time": 1e400, "loss": 1.0}',
    b'{"event": "train", "step": 4, "time": 1.0, "slowest": {"rank": 0}}', b"\0" * 4096,
    b'{"event": "validate", "step": 4, "time": 1.0}', b'{"event": "train", "step": 4, "time": 1.0, "x": 1' + b"0" * 400,
    b'{"event": "checkpoint", "step": 1e400, "time": 1.0}', b'{"event": "train", "step": 4, "time": 1.0, "loss": []}',
]  # fmt: skip


def read_by_all(run: Path, endpoint: Endpoint) -> None:
    """Let everything read the metrics that does so at a start, while the run lasts, and at its end."""
    events = read_events(run / "metrics.jsonl")
    for event in events:
        endpoint.recall(event)
        numbers(event, 2)
    settle(Clock(time.monotonic()), run, 5)
    report.render(run)
    with (run / "metrics.jsonl").open("rb") as file:
        assert read_portion(file) == [event for event in events if "time" in event]


@pytest.fixture(scope="module")
def endpoint() -> Endpoint:
    return Endpoint(0, "run")


def test_metrics_of_which_any_byte_has_changed(tmp_path: Path, endpoint: Endpoint) -> None:
    path = tmp_path / "metrics.jsonl"
    for index in range(0, len(WHOLE), 5):
        changed = bytearray(WHOLE)
        changed[index] ^= 1 << index % 8
        path.write_bytes(changed)
        read_by_all(tmp_path, endpoint)
        assert len(read_events(path)) >= WHOLE.count(b"\n") - 2  # a line, or two that became one


@pytest.mark.parametrize("line", ILL, ids=lambda line: str(line[:40]))
def test_metrics_with_a_line_that_is_none(tmp_path: Path, endpoint: Endpoint, line: bytes) -> None:
    path, samples = tmp_path / "metrics.jsonl", tmp_path / "samples" / "rank-0.jsonl"
    samples.parent.mkdir()
    first, rest = WHOLE.split(b"\n", 1)
    path.write_bytes(first + b"\n" + line + b"\n" + rest)
    read_by_all(tmp_path, endpoint)
    samples.write_bytes(b'{"step": 3, "sample_ids": [1]}\n' + line + b'\n{"step": 4, "sample_ids": [2]}\n')
    rewind_all(tmp_path, 3, 1)
    read_by_all(tmp_path, endpoint)
    assert b'{"step": 3, "sample_ids": [1]}\n' in samples.read_bytes()
    assert b"[2]" not in samples.read_bytes()
    assert [event["step"] for event in read_events(path) if event["event"] == "train"][:3] == [1, 2, 3]


@pytest.mark.parametrize(
    "text", ["{}", "[1]", '{"time": "x"}', '{"time": null, "previous": 5.0}', "\udcff", "", "7", "[" * 100_000],
    ids=lambda text: text[:40].encode(errors="replace").decode(),
)  # fmt: skip
def test_heartbeats(tmp_path: Path, text: str) -> None:
    (tmp_path / "heartbeats").mkdir()
    for rank, content in enumerate((text, json.dumps({"time": 60.0}), text)):
        (tmp_path / "heartbeats" / f"rank-{rank}.json").write_bytes(content.encode(errors="surrogateescape"))
    assert beats.last_alive(tmp_path, before=100.0) == 60.0
    files = beats.Files(tmp_path, 0, None)
    assert files.read([0, 2], 60.0) == {0: {}, 2: {}}
    files.offer({"rank": 0})
    files.close(60.0)
    assert json.loads((tmp_path / "heartbeats" / "rank-0.json").read_text()) == {"rank": 0, "previous": 0.0}


def test_scores(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        checkpoint.save(tmp_path, step, {"model": {}}, {})
    storage.write_json(
        tmp_path / "scores.json", {"step-00000010": "best", "step-00000020": 60.0, "step-00000030": [None]}
    )
    checkpoint.score(tmp_path, 40, 50.0)
    checkpoint.prune(tmp_path, 1, 1)
    assert [path.name for path in checkpoint.steps(tmp_path)] == ["step-00000020", "step-00000040"]


def run_of(path: Path) -> Config:
    return config.build({"recipe": "demo", "run": {"dir": str(path)}})


NOTES: dict[str, Callable[[Config], dict[str, Any]]] = {
    "failed.json": lambda run: {"code": Exit.NAN, "fingerprint": config.fingerprint(run), "job": ""},
    "summary.json": lambda run: {"status": "finished", "length": starting.length_of(run), "steps": 5, "top1": 1.5},
    "last_failure.json": lambda run: {"code": 138, "message": "a peer is lost", "job": "", "start": 1},
    "restarts/none.json": lambda run: {"count": 9, "starts": 9, "checkpoint": "none", "job": ""},
}


@pytest.mark.parametrize("value", [None, "x", [], {}, -1, 1e400, True], ids=str)
@pytest.mark.parametrize("name", NOTES)
def test_notes(tmp_path: Path, name: str, value: Any) -> None:
    """With each of their entries in turn in place of which another value stands."""
    run = run_of(tmp_path)
    (tmp_path / "report.html").write_text("")
    fields = [*NOTES[name](run), "config", "identity"]
    for field in fields:
        for file, note in NOTES.items():
            (tmp_path / file).parent.mkdir(exist_ok=True)
            storage.write_json(tmp_path / file, {**note(run), **({field: value} if file == name else {})})
        if name != "failed.json":
            (tmp_path / "failed.json").unlink()
        with contextlib.suppress(ExitError):  # that of failed.json, whatever it still says
            starting.over_already(run, 128)
        starting.count(run)
        starts.remember(tmp_path, "it failed", 138)
        starts.may_try_again(run.run, "somewhere")
        starts.lost_checkpoint(tmp_path, 0)


FILES = [*NOTES, "resumed.json", "checkpoints/scores.json", "checkpoints/step-00000009/manifest.json",
         "leases/00000001/lease.json", "lease.json", "restarts/another.json"]  # fmt: skip


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"\0" * 4096, b"[]", b"[" * 100_000], ids=lambda content: content[:4]
)
@pytest.mark.parametrize("name", FILES)
def test_notes_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes) -> None:
    """A start goes on from the sound checkpoint, whatever lies in place of one of the others' notes."""
    monkeypatch.setattr(fence, "PAUSE", 0.0)
    run = run_of(tmp_path)
    checkpoint.save(tmp_path / "checkpoints", 5, {"model": {}, "optimizer": {}}, {})
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(content)
    assert starting.over_already(run, 128) is None
    starting.count(run)
    starts.remember(tmp_path, "it failed", 138)
    starts.may_try_again(run.run, "somewhere")
    directory = starting.run_directory(run)
    found = directory.start({})
    checkpoint.score(directory.checkpoints, 5, 50.0)
    checkpoint.prune(directory.checkpoints, 1, 1)
    directory.release()
    assert found is not None
    assert found.step == 5


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to(path.name)], ids=["folder", "link"])
@pytest.mark.parametrize(
    "name", ["restarts/another.json", "resumed.json", "failed.json", "checkpoints/step-00000009/manifest.json"]
)
def test_what_is_no_file_is_no_note(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    run = run_of(tmp_path)
    checkpoint.save(tmp_path / "checkpoints", 5, {"model": {}, "optimizer": {}}, {})
    (tmp_path / name).parent.mkdir(exist_ok=True)
    make(tmp_path / name)
    assert starting.over_already(run, 128) is None
    starting.count(run)
    directory = starting.run_directory(run)
    found = directory.start({})
    directory.release()
    assert found is not None
    assert found.step == 5


def test_steps_of_more_digits_than_any_run_has(tmp_path: Path) -> None:
    for name in ("9" * 19, "1" * 245, "0000000\uff18"):
        (tmp_path / "checkpoints" / f"step-{name}").mkdir(parents=True)
    checkpoint.save(tmp_path / "checkpoints", 5, {"model": {}, "optimizer": {}}, {})
    (tmp_path / "restarts").mkdir()
    storage.write_json(tmp_path / "restarts" / "a.json", {"checkpoint": f"step-{'9' * 5000}"})
    directory = starting.run_directory(run_of(tmp_path))
    found = directory.start({})
    directory.release()
    assert found is not None
    assert found.step == 5
    assert starts.lost_checkpoint(tmp_path, 0) == ""
