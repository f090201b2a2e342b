"""Measures what smaller images save: images per processor second of the loader, and whole runs on the sample set.

python benchmarks/cpu/sizes.py OUT.json [--rounds 5] [--seeds 5]      (after `hack/bootstrap python sample photos`)

loader   real photos of ImageNet's average size, prepared seekable and untouched, cropped at random to each size
plain    the sample set's real images of 28 x 28 pixels, 6 epochs of a small network at 28 pixels
grows    the same network and settings for 4 epochs, of which the first two are at 20 pixels

Sizes, folders, seeds and recipes take turns; everything has one thread. A run's seconds are those that the kernel
counted for its process: start, reading, decoding, training, one validation, publishing.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]
import photos  # noqa: E402

CACHE = Path(os.environ.get("TRAINYARD_CACHE", Path.home() / ".cache" / "trainyard"))
PHOTOS, BATCH, BATCHES, SIZES = 208, 64, 3, (128, 160, 192, 224)
FOLDERS = {"seekable": True, "untouched": False}
BOTH: dict[str, Any] = {
    "data": {"dir": "sample", "image_size": 28, "val_image_size": 28, "val_resize": 28, "workers": 1},
    "model": {"name": "sizes:net"},
    "batch": {"global": 96},
    "epochs": 6,
    "optimizer": {"lr": 0.15, "lr_batch": 96, "weight_decay": 5e-4, "nesterov": True},
    "schedule": {"name": "cosine", "warmup_epochs": 0.6},
    "augment": {"crop": "none"},
    "validate": {"every_epochs": 0},
    "checkpoint": {"every_steps": 0},
    "device": "cpu",
}
RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grows": {"epochs": 4, "data": {**BOTH["data"], "size_start": 20, "size_ramp": [0.5, 0.5]}},
}


def net(num_classes: int) -> Any:
    """Return a small residual network without a stride in its stem: its work is in proportion to an image's pixels."""
    from torch import nn

    from trainyard.models.small import Block

    stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(
        stem, Block(8, 16, 2), Block(16, 32, 2), Block(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(64, num_classes),
    )  # fmt: skip


def prepare() -> Path:
    """Create the photos and both prepared folders, once; return where they are."""
    root = CACHE / "bench-sizes"
    if (root / ".complete").exists():
        return root
    from trainyard.prepare.build import build
    from trainyard.prepare.settings import parse

    folder = photos.make_folder(root / "photos", PHOTOS, photos.AVERAGE)
    archive = photos.make_zip(root / "photos.zip", folder, deflated=False)
    for name, seekable in FOLDERS.items():
        settings = {"source": {"kind": "path", "path": str(archive)}, "out": str(root / name), "layout": "imagefolder"}
        build(parse({**settings, "workers": 1, "seekable": seekable}))
    (root / ".complete").touch()
    return root


def load(folder: Path, size: int) -> float:
    """Return images per processor second of the trainers' own loader."""
    from ours import open_loader

    from trainyard.data.sampler import Order

    loader = open_loader(folder, BATCH, {}, workers=1)
    order = Order(len(loader.labels), BATCH, 1)
    jobs = ((order.epoch(step), order.slice(step, 0, 1)) for step in range(BATCHES))
    begin = time.process_time()
    count = sum(len(batch.ids) for batch in loader.batches(jobs, itertools.repeat(size)))
    return count / (time.process_time() - begin)


def measure_loader(rounds: int) -> list[dict[str, Any]]:
    """Measure each size of each folder in turn; return a row for each."""
    found: dict[tuple[str, int], list[float]] = {}
    root = prepare()
    if rounds:
        load(root / next(iter(FOLDERS)), SIZES[0])  # imports, and the decoder's library
    for _, name, size in itertools.product(range(rounds), FOLDERS, SIZES):
        found.setdefault((name, size), []).append(load(root / name, size))
        print(f"loader, {name}, {size} pixels: {found[name, size][-1]:.0f} images per processor second", flush=True)
    return [
        {"name": f"loader, {name}, {size} pixels", "rate": round(statistics.median(rates), 1)}
        for (name, size), rates in found.items()
    ]


def train(settings: dict[str, Any]) -> tuple[float, float]:
    """Train by settings without `run`; return top-1 in percent, and processor seconds."""
    with tempfile.TemporaryDirectory() as folder:
        config, log = Path(folder) / "config.yaml", Path(folder) / "log"
        config.write_text(json.dumps({**settings, "run": {"dir": f"{folder}/run"}}))
        kept = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "4000000000"}  # as scripts/train
        # with AVX-512 oneDNN 3.13.3 crashes at 48 pixels, in the weights' gradient of the first 1 x 1 convolution
        kept["ONEDNN_MAX_CPU_ISA"] = "AVX2"
        environment = {**os.environ, **kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}/src:{ROOT}:{HERE}"}
        command = [sys.executable, "-m", "trainers.ddp", "--config", str(config)]
        with log.open("w") as file:
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
            _, status, used = os.wait4(process.pid, 0)
        if status:
            sys.exit(f"{log.read_text()}the trainer ended: {os.waitstatus_to_exitcode(status)}")
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
    return float(summary["top1"]), used.ru_utime + used.ru_stime


def measure_recipes(seeds: int) -> list[dict[str, Any]]:
    """Train by both recipes with each seed; return a row for each recipe."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in RECIPES if seeds}
    for seed, name in itertools.product(range(1, seeds + 1), found):
        top1, seconds = train({**BOTH, **RECIPES[name], "seed": seed})
        found[name].append((top1, seconds))
        print(f"seed {seed}, {name}: top-1 {top1:.2f} %, {seconds:.1f} processor seconds", flush=True)
    return [
        {"name": f"recipe, {name}", "top1": [top1 for top1, _ in runs], "seconds": [round(used, 1) for _, used in runs]}
        for name, runs in found.items()
    ]


def main() -> None:
    """Measure both parts, and write the rows."""
    parser = argparse.ArgumentParser(description="Measure what smaller images save.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="of the loader; 0: leave it out")
    parser.add_argument("--seeds", type=int, default=5, help="of the runs; 0: leave them out")
    options = parser.parse_args()
    rows = [*measure_loader(options.rounds), *measure_recipes(options.seeds)]
    for row in rows:
        print(row)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
