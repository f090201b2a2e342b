"""What a run says of its steps and validations, without a run."""

import contextlib
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainyard import config
from trainyard.cluster import links
from trainyard.parallel.single import Single
from trainyard.run.recorder import Recorder
from trainyard.telemetry.clock import Clock
from trainyard.telemetry.console import Console


def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Recorder, Clock, list[dict[str, Any]]]:
    """Return a recorder of a start that took long, its clock, and the list of its lines."""
    lines: list[dict[str, Any]] = []
    telemetry = SimpleNamespace(event=lambda _, step, __, **fields: lines.append({"step": step, **fields}),
                                ranks=lambda *_: None)  # fmt: skip
    order = SimpleNamespace(samples_before=lambda step: 8 * step, epoch=lambda _: 0)
    data: Any = SimpleNamespace(order=order, length=None, splits=SimpleNamespace(class_names=["a", "b"]))
    directory: Any = SimpleNamespace(path=tmp_path)
    settings = config.build({"recipe": "demo"}, {"run": {"dir": str(tmp_path)}})
    clock = Clock(time.monotonic())
    recorder = Recorder(settings, Single(torch.device("cpu")), directory, data, clock)
    clock.spend({"init": 1000.0})  # a start that took long
    clock.begin()
    monkeypatch.setattr(Recorder, "_reporting", telemetry)
    return recorder, clock, lines


def test_a_line_tells_the_mean_loss_of_its_steps_and_their_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, _, lines = begin(tmp_path, monkeypatch)
    for step, loss in enumerate((4.0, 3.0, 2.0, 0.1), 1):
        recorder.step_done(step, torch.arange(8).numpy(), torch.tensor(loss, dtype=torch.float64))
        if step in (3, 4):
            recorder.flush(step, 0.1)
    assert lines[0]["seconds"]["init"] >= 1000.0
    assert lines[0]["images_per_second"] > 1.0  # of the steps, not of the start
    # and the loss of a line of one step is that step's, digit by digit
    assert [(line["step"], line["samples"], line["loss"]) for line in lines] == [(3, 24, 3.0), (4, 32, 0.1)]


@pytest.mark.parametrize("error", [None, OSError("the report fails")])
def test_a_run_says_last_that_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """Who waits for that finds the report; one that fails leaves the run's state."""
    directory: Any = SimpleNamespace(path=tmp_path, fenced=contextlib.nullcontext, staging=None, lost=lambda: False)
    data: Any = SimpleNamespace(order=None, length=None, splits=SimpleNamespace(class_names=[]))
    settings = config.build({"recipe": "demo"}, {"run": {"dir": str(tmp_path)}})
    recorder = Recorder(settings, Single(torch.device("cpu")), directory, data, Clock(time.monotonic()))
    monkeypatch.setattr(recorder, "summary", lambda status, *_: {"status": status, "seconds": {}})
    seen = []

    def report(summary: dict[str, Any]) -> None:
        seen.append((summary["status"], (tmp_path / "summary.json").exists()))
        if error:
            raise error

    with pytest.raises(OSError, match="the report fails") if error else contextlib.nullcontext():
        recorder.summarize("finished", 4, 1, None, report)
    assert seen == [("finished", False)]
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "finished"


@pytest.mark.parametrize("hosts", [("a", "b"), ("a", "a")])
def test_a_network_that_became_slow_is_said_of_several_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], hosts: tuple[str, str]
) -> None:
    recorder, clock, lines = begin(tmp_path, monkeypatch)
    recorder._ranks = [{"host": host} for host in hosts]
    for step, seconds in enumerate((10.0, 10.0, 10.0, 90.0, 90.0), 1):
        clock.spend({"compute": 10.0, "communication": seconds})
        recorder.step_done(step, torch.arange(8).numpy(), torch.tensor(1.0, dtype=torch.float64))
        recorder.flush(step, 0.1)
    slow = [round(line.get("slow_network", 0)) for line in lines]
    assert slow == ([0, 0, 0, 0, 5] if hosts[0] != hosts[1] else [0] * 5)
    console = Console(5, 5, 0.0)
    for line in lines:
        console.show({"event": "train", "epoch": 1, **line})
    said = [links.said_of_network(text) for text in capsys.readouterr().out.splitlines()]
    told = "network: steps take 5 times as long as before, by communication on every rank"
    assert said == [told if one else "" for one in slow]


@pytest.mark.parametrize(("classes", "told"), [(10, False), (11, True)])
def test_of_few_classes_five_guesses_are_not_shown(
    classes: int, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(10, 10, 1.0)
    console.show({"event": "start", "classes": classes})
    console.show({"event": "validate", "epoch": 1, "samples": 9, "top1": 50.0, "top5": 90.0, "loss": 1.0})
    said = capsys.readouterr().out
    assert "top1 50.00 %  " in said
    assert ("top5 90.00 %" in said) is told
