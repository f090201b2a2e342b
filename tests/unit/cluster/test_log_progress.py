"""What the trainers and the preparation print is what `trainyard runs` reads: lines of the real ones."""

import io

import pytest

from trainyard.cluster import log_progress
from trainyard.cluster.log_progress import RunProgress
from trainyard.prepare.progress import ProgressMeter as Preparation
from trainyard.prepare.sources.base import Traffic
from trainyard.telemetry.console import Console

TRAIN = {"event": "train", "epoch": 2, "loss": 1.5, "lr": 0.1, "images_per_second": 12345.6}


@pytest.fixture
def printed(capsys):
    """Return a function of a run's events: the lines that its first process prints."""

    def show(*events: dict) -> str:
        console = Console(1600, 100, 0.0)
        for event in events:
            console.show(event)
        return capsys.readouterr().out

    return show


def test_a_step_tells_how_far_how_fast_and_how_well(printed):
    start = {"event": "start", "step": 0, "seconds_total": {"init": 10.0, "compute": 30.0}}
    spent = {"seconds": {"compute": 50.0, "data_wait": 10.0}}
    text = printed(start, TRAIN | spent | {"step": 40}, TRAIN | {"step": 41, "seconds": {}})
    found = log_progress.read(text)
    assert (found.step, found.steps, found.images_per_second, found.goodput) == (41, 1600, 12346, 0.8)
    assert found.eta_seconds is not None


def test_goodput_counts_the_seconds_of_earlier_starts(printed):
    start = {"event": "start", "step": 0, "seconds_total": {"lost": 60.0, "compute": 20.0}}
    text = printed(start, TRAIN | {"step": 40, "seconds": {"compute": 20.0}})
    assert "goodput 40 %" in text
    assert log_progress.read(text).goodput == 0.4


def test_a_validation_tells_the_accuracy_and_keeps_the_rest(printed):
    validated = {"event": "validate", "epoch": 2, "samples": 9, "top1": 81.25, "top5": 90.0, "loss": 1.0}
    found = log_progress.read(printed(TRAIN | {"step": 200}, validated))
    assert (found.step, found.top1) == (200, 81.25)


@pytest.mark.parametrize(
    ("text", "seconds"), [("0:00:10", 10), ("1:02:03", 3723), ("1 day, 0:00:01", 86401), ("12 days, 1:00:00", 1040400)]
)
def test_time_left_is_read_as_python_writes_it(text, seconds):
    line = f"step   4/1600  epoch 1/2  loss 1.0000  lr 0.1  100 img/s  goodput 50 %  eta {text}  slowest rank 1: 9 %"
    assert log_progress.read(line).eta_seconds == seconds


def test_a_run_that_ended_tells_its_result():
    text = (
        "resnet50 on 6000 samples of 10 classes: 160 steps of 192, ddp on 4 processes (cpu, fp32), run directory /r\n"
        "resumed at step 40; 3 steps are done again\n"
    )
    assert log_progress.read(text) == RunProgress(step=40, steps=160)
    text += "finished: top1 85.20 %, 1,234 img/s over 20 s of training, goodput 71 %; published to /r/published\n"
    found = log_progress.read(text)
    assert (found.step, found.top1, found.images_per_second, found.goodput) == (160, 85.2, 1234, 0.71)


def test_a_preparation_tells_its_images():
    out, traffic = io.StringIO(), Traffic()
    work = Preparation(traffic, samples=6000, shards=5, to=out)
    work._started = 0.0
    work.add(samples=1500, shards=1)
    found = log_progress.read(f"preparing: {work._text(1.0, 250.0, 30.0)}")
    assert (found.step, found.steps, found.eta_seconds, found.images_per_second) == (1500, 6000, 90, 250)
    found = log_progress.read(
        "prepared /data/pets: 6,000 train and 2,000 val samples, 10 classes, 5 shards, 1.0 MB in 1 s"
    )
    assert (found.step, found.steps) == (8000, 8000)


def test_the_last_step_but_one_is_not_the_last():
    found = log_progress.read("step 159/160  epoch 5/5  loss 1.0000  lr 0.1  100 img/s  goodput 50 %  eta 0:00:00")
    assert (found.step, found.eta_seconds) == (159, 0)


def test_other_lines_tell_nothing():
    assert log_progress.read("launch: 4 processes on 2 nodes\nerror: step 3/4 is wrong\n\n") == RunProgress()


def test_lines_that_look_like_ours_and_are_not_are_passed_over():
    ours = "step 4/16  epoch 1/2  loss 1.0000  lr 0.1  100 img/s  goodput 50 %  eta 0:00:09"
    for line in (ours.replace("100 img", ", img"), ours.replace("0:00:09", "soon"), "epoch 1/2  validated: top1 . %"):
        assert log_progress.read(f"{ours}\n{line.replace('step 4', 'step 9')}") == log_progress.read(ours), line
