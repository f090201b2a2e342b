"""Comparing runs over processes: efficiency, the ring's model fitted to them, and what cannot be compared."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Trainer, events

from tests import documents
from trainyard.core.exits import UserError
from trainyard.report import comparison, scaling

SIZE, LATENCY, BANDWIDTH = 100e6, 1e-3, 5e9  # bytes, seconds, bytes per second: made up, and found again
ELEMENTS = 25_000_000


def make_run(folder: Path, world: int, batch: int, *, strategy: str = "ddp", **over: Any) -> Path:
    """The records of a run whose steps take just what the model says."""
    run = folder / f"on-{world}-{strategy}-{len(list(folder.iterdir()))}"
    run.mkdir()
    waits = comparison.ring(world, SIZE, comparison.LinkModel(LATENCY, BANDWIDTH, ""))
    spent = {"data_wait": 0.01, "compute": 0.002 * batch / world, "communication": waits, "other": 0.002, "init": 0.0,
             "checkpoint": 0.5, "validation": 3.0}  # fmt: skip
    lines = [
        {"event": "train", "step": step, "samples": step * batch,
         "seconds": {cause: 10 * value if step > 10 else 99.0 for cause, value in spent.items()}}
        for step in range(10, 60, 10)
    ]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = {
        "world_size": world, "strategy": strategy, "model": "torchvision:resnet50", "precision": "fp32",
        "identity": {"model.name": "torchvision:resnet50", "model.num_classes": 1000, "batch.global": batch},
        "ranks": [{"device": f"cuda:{rank}", "gpu": "NVIDIA H200"} for rank in range(world)],
        "config": {"data": {"image_size": 224}, "batch": {"micro": 0}, "model": {"batch_norm": "local"}, **over},
    }  # fmt: skip
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "published").mkdir()
    if world == 1:
        write_weights(run / "published" / "model.safetensors")
    return run


def write_weights(file: Path) -> None:
    """Write a safetensors file whose tensors are holes: 100 MB take no time and no room."""
    end = 4 * ELEMENTS
    head = json.dumps({
        "fc.weight": {"dtype": "F32", "shape": [ELEMENTS // 1000, 1000], "data_offsets": [0, end]},
        "bn.running_mean": {"dtype": "F32", "shape": [64], "data_offsets": [end, end + 256]},
    }).encode()  # fmt: skip
    file.write_bytes(len(head).to_bytes(8, "little") + head)
    os.truncate(file, 8 + len(head) + end + 256)


def compare(runs: list[Path], **options: Any) -> comparison.Comparison:
    found = [comparison.read_run(run)[0] for run in runs]
    over = {"size": SIZE, "latency": None, "bandwidth": None, "up_to": 0, **options}
    return comparison.compare(found, **over)


def test_model_is_found_again_and_predicts_the_runs(tmp_path: Path) -> None:
    found = compare([make_run(tmp_path, world, 64 * world) for world in (4, 1, 2, 8)])
    assert [row.run.world for row in found.rows] == [1, 2, 4, 8]
    assert found.policy == "fixed batch per process (weak scaling)"
    assert found.link.latency == pytest.approx(LATENCY)
    assert found.link.bandwidth == pytest.approx(BANDWIDTH)
    base, last = found.rows[0], found.rows[-1]
    assert base.run.step == pytest.approx(0.01 + 0.128 + 0.002)  # no checkpoint, no validation, no first line
    assert base.run.rate == pytest.approx(64 / 0.14)
    assert last.efficiency == pytest.approx(0.14 / (0.14 + 14e-3 + 14 / 8 * 0.02))
    assert last.speedup == pytest.approx(8 * last.efficiency)
    assert all(row.predicted == pytest.approx(row.run.rate) for row in found.rows)
    assert [world for world, _ in found.curve] == [1, 2, 4, 8, 16, 32]


def test_single_process_is_the_smallest_run_of_each_strategy(tmp_path: Path) -> None:
    paths = [make_run(tmp_path, 1, 64, strategy="single")]
    paths += [make_run(tmp_path, world, 64 * world, strategy=name) for name, world in
              (("ddp", 2), ("ddp", 4), ("fsdp", 2), ("horovod", 1), ("horovod", 2))]  # fmt: skip
    found = comparison.series([comparison.read_run(path)[0] for path in paths])
    assert {name: sorted(run.world for run in runs) for name, runs in found.items()} == {
        "ddp": [1, 2, 4], "fsdp": [1, 2], "horovod": [1, 2],
    }  # fmt: skip
    assert compare([Path(run.path) for run in found["ddp"]]).strategy == "ddp"
    assert list(comparison.series([comparison.read_run(paths[0])[0]])) == ["single"]


def test_fixed_global_batch_divides_the_work(tmp_path: Path) -> None:
    found = compare([make_run(tmp_path, world, 256) for world in (1, 2, 4)])
    assert found.policy == "fixed global batch (strong scaling)"
    assert all(row.predicted == pytest.approx(row.run.rate) for row in found.rows)
    assert found.rows[2].efficiency < found.rows[1].efficiency < 1


def test_constants_that_are_given_or_cannot_be_found(tmp_path: Path) -> None:
    one, two = make_run(tmp_path, 1, 64), make_run(tmp_path, 2, 128)
    assert compare([one]).link == comparison.LinkModel(20e-6, 10e9, "defaults: no run on several")
    assert compare([one, two], latency=5e-6, bandwidth=1e9).link == comparison.LinkModel(5e-6, 1e9, "as set by flags")
    assert compare([one, two], latency=LATENCY).link.bandwidth == pytest.approx(BANDWIDTH)
    assert compare([one, two], bandwidth=BANDWIDTH).link.latency == pytest.approx(LATENCY)
    one_number = compare([one, two]).link
    assert (one_number.latency, one_number.origin) == (20e-6, "bandwidth fitted to the runs")
    no_latency = [comparison.MeasuredRun("", world, "ddp", 64, 1, 1, 0, 1, 0.02 / world, 0) for world in (2, 4, 8)]
    assert comparison.fit(no_latency, SIZE, None, None).latency == 0.0  # never below zero


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"batch": 100}, "the global batch is neither the same in all runs nor grows"),
        ({"batch": 128, "data": {"image_size": 176}}, "data.image_size = 176 in .*on-2.*, but 224 in .*on-1"),
        ({"batch": 128, "model": {"batch_norm": "global"}}, "model.batch_norm = 'global'"),
    ],
)
def test_runs_that_cannot_be_compared(tmp_path: Path, other: dict[str, Any], said: str) -> None:
    one, two = make_run(tmp_path, 1, 64), make_run(tmp_path, 2, **other)
    with pytest.raises(UserError, match=said):
        scaling.main([str(one), str(two), "--html", str(tmp_path / "page.html")])


def test_records_that_say_too_little(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no summary.json"):
        scaling.main([str(tmp_path)])
    run = make_run(tmp_path, 2, 128)
    with pytest.raises(UserError, match="has not published its weights: give the size as --gradient-mb"):
        scaling.main([str(run), "--html", str(tmp_path / "page.html")])
    with pytest.raises(UserError, match="are both ddp on 2 processes"):
        scaling.main([str(run), str(make_run(tmp_path, 2, 128)), "--gradient-mb", "100"])
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join(lines[:2]))
    with pytest.raises(UserError, match="has 2 lines of training metrics; 3 are needed"):
        scaling.main([str(run)])


def test_the_documents_command(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for world in (1, 2, 4):
        make_run(tmp_path / "runs", world, 64 * world).rename(tmp_path / "runs" / f"on-{world}")
    text = documents.run("reports.md", "trainyard scaling", cwd=tmp_path).stdout
    assert "ddp, fixed batch per process (weak scaling)" in text
    assert "<polyline" in (tmp_path / "scaling.html").read_text()


def test_command(tmp_path: Path) -> None:
    runs = [str(make_run(tmp_path, world, 64 * world, strategy=strategy))
            for world, strategy in ((1, "ddp"), (2, "ddp"), (4, "ddp"), (1, "horovod"), (4, "horovod"))]  # fmt: skip
    command = [sys.executable, "-m", "trainyard", "scaling", *runs, "--html", str(tmp_path / "page.html")]
    text = subprocess.check_output(command, text=True)
    assert "ddp, fixed batch per process (weak scaling)" in text
    assert "horovod, fixed batch per process (weak scaling)" in text
    assert "100.00 MB a step, 1000 us latency, 5 GB/s (latency and bandwidth fitted to the runs)" in text
    found = json.loads(subprocess.check_output([*command, "--json"], text=True))
    assert [(entry["strategy"], len(entry["rows"])) for entry in found] == [("ddp", 3), ("horovod", 2)]
    page = (tmp_path / "page.html").read_text()
    assert page.count("<polyline") == 2 * 5  # ideal, model, measured; and efficiency without the ideal
    assert "as measured" not in page


def test_fsdp_and_compression_carry_other_sizes(tmp_path: Path) -> None:
    sizes = {}
    for name, over in {
        "ddp": {}, "fsdp": {}, "half": {"comm": {"compression": "bf16"}}, "wide": {"comm": {"gradients": "fp64"}},
    }.items():  # fmt: skip
        run = make_run(tmp_path, 1, 64, strategy=name if name == "fsdp" else "ddp", **over)
        sizes[name] = comparison.gradient_bytes(run, json.loads((run / "summary.json").read_text()))
    assert sizes == {"ddp": 100e6, "fsdp": 150e6, "half": 50e6, "wide": 200e6}


@pytest.mark.takes(30)
def test_real_runs_with_a_batch_per_process_are_compared(trainer: Trainer, tmp_path: Path) -> None:
    runs = [
        trainer.train(tmp_path / f"on-{world}", world, **{"batch.global": None, "batch.per_process": 4})
        for world in (1, 2)
    ]
    done = subprocess.run(
        [sys.executable, "-m", "trainyard", "scaling", *map(str, runs), "--json"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert found["policy"] == "fixed batch per process (weak scaling)"
    small, large = (row["run"] for row in found["rows"])
    assert [(one["world"], one["batch"]) for one in (small, large)] == [(1, 4), (2, 8)]
    assert small["rate"] > 0 < large["rate"]
    rates = [max(event["lr"] for event in events(run, "train")) for run in runs]
    assert rates[1] == pytest.approx(2 * rates[0]), "the learning rate follows the batch"
