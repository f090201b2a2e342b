"""report.html in a real browser, and what it says; the records behind it are made up, as those of a large run."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import browser
import numpy as np
import pytest
import torch

from tests import documents
from trainyard import config, report
from trainyard.core.exits import UserError
from trainyard.report.confusion import read_confusion, worst
from trainyard.report.svg import Line, Share, duration, line_chart, number, stacked_area, stacked_bar
from trainyard.run.result import write_confusion

NAMES = [f"n{index:08d} a class with quite a long name, number {index}" for index in range(1000)]
CAUSES = ("init", "data_wait", "compute", "communication", "checkpoint", "validation", "lost", "restart_wait", "other")


def line(step: int, restarted: bool) -> dict[str, Any]:
    share = {
        "data_wait": 0.5,
        "compute": 3.0,
        "communication": 0.4,
        "checkpoint": 0.1,
        "validation": 0.0,
        "other": 0.01,
    }
    return {
        "event": "train", "step": step, "epoch": 1 + step // 1000, "time": 1e9 + step, "samples": step * 1024,
        "loss": 7 * math.exp(-step / 4000) + 0.3 * math.sin(step), "lr": 0.4 * math.cos(step / 13000 * math.pi / 2),
        "images_per_second": 16000 + 900 * math.sin(step / 300), "seconds": share,
        "slowest": {"rank": 3, "cause": "data" if restarted else "compute", "behind": 0.1 + step % 7 / 100},
    }  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of 12,000 steps on 64 processes and 1,000 classes, restarted once."""
    run = tmp_path_factory.mktemp("report") / "resnet50-imagenet-with-a-rather-long-name-of-a-run-that-nobody-shortened"
    run.mkdir()
    start = {"event": "start", "step": 0, "time": 1e9, "started": 1e9, "idle": 0, "seconds": {"init": 9.0}}
    lines: list[dict[str, Any]] = [start]
    for step in range(10, 12001, 10):
        lines += [{**start, "step": 6000}] if step == 6000 else []
        lines.append(line(step, step > 6000))
        if step % 1000 == 0:
            top1 = 76 * (1 - math.exp(-step / 3000))
            lines.append({"event": "validate", "step": step, "epoch": step // 1000, "time": 1e9 + step, "loss": 1.4,
                          "samples": 50000, "top1": top1, "top5": min(99.0, top1 + 20)})  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    ranks = [
        {"rank": rank, "host": f"resnet50-imagenet-worker-{rank // 8}.training.svc.cluster.local", "pid": 7 + rank,
         "device": "cuda:0", "gpu": "NVIDIA H200", "seconds": {"data_wait": 12.0 + (rank == 3) * 900,
                                                                "compute": 4000.0, "communication": 300.0}}
        for rank in range(64)
    ]  # fmt: skip
    summary = {
        "status": "finished", "steps": 12000, "epochs": 12, "images_per_second": 16021.3, "world_size": 64,
        "strategy": "ddp", "seconds": dict(zip(CAUSES, (60, 500, 4000, 300, 90, 200, 40, 120, 4), strict=True)),
        "restarts": 1, "slowest_rank": {"rank": 3, "cause": "data", "behind": 0.17}, "ranks": ranks,
        "samples": 12_288_000, "precision": "bf16", "finished_at": 1.79e9, "top1": 76.0, "top5": 93.0,
        "identity": {"model.name": "torchvision:resnet50", "model.num_classes": 1000, "batch.global": 1024},
        "versions": {"trainyard": "0.1.0", "torch": "2.15.0", "python": "3.12.4"},
        "config": {"seed": 1, "optimizer": {"lr": 0.4, "momentum": 0.9}, "data": {"dir": "/mnt/data/" + "x" * 90}},
    }  # fmt: skip
    (run / "summary.json").write_text(json.dumps(summary))
    counts = np.zeros((1000, 1000), dtype=np.int64)
    np.fill_diagonal(counts, 40)
    counts[7, 7], counts[7, 8], counts[7, 9] = 5, 30, 5
    write_confusion(run, torch.from_numpy(counts), NAMES)
    (run / "report.html").write_text(report.render(run))
    return run


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)])
def test_page_in_a_browser(run: Path, tmp_path: Path, width: int, dark: bool) -> None:
    shown = browser.show((run / "report.html").read_text(), tmp_path, width, dark)
    shot = shown.shot
    assert shown.inner == width
    assert shown.scroll == shown.inner, "the page is wider than the window"
    assert shown.charts == 7
    assert shown.columns == (1 if width < 600 else 2)
    assert (shot.mean() < 80) == dark  # light or dark as the reader's system asks for
    assert shot.std() > 10
    assert all(block.std() > 2 for block in np.array_split(shot, 6)), "a sixth of the page is blank"


def test_page_says_what_matters(run: Path) -> None:
    page = (run / "report.html").read_text()
    assert "http" not in page.replace("http://www.w3.org", "")  # nothing is fetched from elsewhere
    for said in (
        "finished", "75.3 %", "goodput: share of all time that computed", "restart wait 2 min 0 s, 2.3 %",
        "number 7</td>", "12.5 %", "number 8 (30)", "NVIDIA H200", "48 faster processes are left out",
        "holds up the others 17.0 % of the time; data", "2.15.0", "optimizer.<wbr>lr",
    ):  # fmt: skip
        assert said in page, said
    assert "momentum</code>" not in page  # a default is not among the settings that differ
    assert page.count('class="mark"') == 3  # the restart, in three charts
    assert len(page) < 400_000


def test_page_of_a_run_that_continues_or_failed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        report.render(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line(10, False)) + "\n")
    assert "running" in report.render(tmp_path)
    (tmp_path / "failed.json").write_text('{"message": "the loss of step 4 is <nan>"}')
    (tmp_path / "hang.json").write_text('{"message": "did not arrive: rank 1"}')
    page = report.render(tmp_path)
    assert "the loss of step 4 is &lt;nan&gt;" in page
    assert "This run hung once and was ended for a restart: did not arrive: rank 1" in page


def test_each_interruption_shows_its_seconds(tmp_path: Path) -> None:
    start = {"event": "start", "step": 0, "time": 1e9, "started": 1e9, "idle": 0, "seconds": {"init": 9.0}}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(start) + "\n")
    assert "Interruptions" not in report.render(tmp_path)
    seconds = {"init": 12.5, "lost": 41.0, "restart_wait": 9.25, "compute": 0.0}
    phases = {"repeated": 11.0, "noticing": 30.0, "away": 4.25, "launching": 5.0,
              "loading": 8.5, "joining": 1.5, "building": 2.5}  # fmt: skip
    again = {**start, "step": 1500, "started": 1e9 + 600, "seconds": seconds, "phases": phases}
    older = {key: value for key, value in again.items() if key != "phases"}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (start, older, again)))
    page = report.render(tmp_path)
    table = page[page.find("Interruptions") :]
    rows = [re.findall(r">([^<>]*)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)[1:3]]
    when = ["2001-09-09 01:56:40", "1,500"]
    assert rows[0] == [*when, *["-"] * 6, "1 min 3 s"]
    assert rows[1] == [*when, "11.0 s", "30.0 s", "4.2 s", "13.5 s", "1.5 s", "2.5 s", "1 min 3 s"]


@pytest.mark.parametrize(("classes", "told"), [(10, False), (11, True)])
def test_of_few_classes_five_guesses_say_nothing(tmp_path: Path, classes: int, told: bool) -> None:
    validated = {"event": "validate", "step": 10, "epoch": 1, "time": 1e9, "loss": 1.4, "samples": 5, "top1": 60.0,
                 "top5": 100.0}  # fmt: skip
    start = {"event": "start", "step": 0, "time": 1e9, "classes": classes}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (start, validated)))
    assert ("top-5" in report.render(tmp_path)) is told


def test_early_validations_are_explained(tmp_path: Path) -> None:
    validated = {"event": "validate", "step": 16, "epoch": 1, "time": 1e9, "loss": 6.0, "samples": 5, "top1": 24.85,
                 "top5": 90.0}  # fmt: skip
    lines = [{**validated, "batch_norm_start": 0.185}, {**validated, "step": 80, "epoch": 5}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert "After epoch 1 BatchNorm&#x27;s averages still held some of their first values" in report.render(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(json.dumps(lines[1]) + "\n")
    assert "BatchNorm" not in report.render(tmp_path)


def test_what_was_predicted_is_beside_what_was_used(run: Path, tmp_path: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    summary["identity"]["data.samples"], summary["validation_samples"] = 1_281_167, 50_000
    page = lambda **cost: rendered(tmp_path, {**summary, "config": settings(cost)})  # noqa: E731
    assert "Predicted and used" not in page()
    shown = page(rate=250.0, source="a guess", price=2.0)
    # 12 epochs of 1,281,167 at 64 * 250 a second: 961 s; 12 validations at three times that
    for cells in (
        '<td>training</td><td class="num">16 min 1 s</td><td class="num">1 h 22 min</td>',
        '<td>validation</td><td class="num">12.5 s</td><td class="num">3 min 20 s</td>',
        '<td>GPU hours</td><td class="num">19.44</td><td class="num">92.34</td>',
        '<td>at 2 USD each</td><td class="num">38.88 USD</td><td class="num">184.68 USD</td>',
        "Predicted from 250 images per second of each, a guess, on 64 processes.",
    ):
        assert cells in shown, cells
    alone = page(price=2.0)
    assert '<td>GPU hours</td><td class="num">-</td><td class="num">92.34</td>' in alone


def settings(cost: dict[str, Any]) -> dict[str, Any]:
    return config.as_tree(config.build({"recipe": "resnet50-90"}, {"epochs": 12, "data": {"dir": "/x"}, "cost": cost}))


def rendered(folder: Path, summary: dict[str, Any]) -> str:
    (folder / "summary.json").write_text(json.dumps(summary))
    return report.render(folder)


def test_command_writes_the_page(run: Path, tmp_path: Path) -> None:
    """By the command of docs/reports.md."""
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    said = documents.run("reports.md", "trainyard report", RUN=tmp_path / "run").stdout
    assert said.strip() == str(tmp_path / "run" / "report.html")
    assert (tmp_path / "run" / "report.html").read_text() == report.render(tmp_path / "run")


def test_worst_classes_and_what_they_are_taken_for(run: Path) -> None:
    found = read_confusion(run)
    assert found is not None
    assert found.counts.sum() == 999 * 40 + 40
    first = worst(found)[0]
    assert (first.name, first.samples, first.right) == (NAMES[7], 40, 5)
    assert first.taken_for == [(NAMES[8], 30), (NAMES[9], 5)]
    assert read_confusion(run / "nowhere") is None


def test_numbers_as_people_read_them() -> None:
    assert [number(value) for value in (0, 0.25, 12.5, 1234, 16021, 2.5e6, 3e-4)] == [
        "0", "0.25", "12.5", "1,234", "16.02k", "2.5M", "0.0003",
    ]  # fmt: skip
    assert [duration(value) for value in (0.0125, 3.21, 75, 7260, 3e5)] == [
        "12.5 ms",
        "3.2 s",
        "1 min 15 s",
        "2 h 1 min",
        "3.5 days",
    ]


def test_charts_of_nothing_and_of_one_point() -> None:
    assert "nothing recorded" in line_chart([Line("a", [])])
    assert "nothing recorded" in stacked_area([], [("a", 1)])
    assert "<circle" in line_chart([Line("a", [(1.0, 2.0)])])
    assert "nan" not in line_chart([Line("a", [(1.0, 2.0), (2.0, math.nan)])])
    assert stacked_area([(1.0, [1.0, 3.0])], [("a", 1), ("b", 2)]).count("<polygon") == 2
    assert "a 1.0 s, 100.0 %" in stacked_bar([Share("a", 1.0, 1), Share("b", 0.0, 2)])
