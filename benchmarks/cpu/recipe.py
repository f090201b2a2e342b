"""Time to accuracy of two recipes on a sample of photos: `resnet50-18`, whose images grow, beside `resnet50-90`.

python benchmarks/cpu/recipe.py OUT.json [--seeds 1,2,3,4,5]      (after `hack/bootstrap python photos`)

Both are the recipes' own files, scaled down alike: a small residual network in place of ResNet-50, images of 56 pixels
where the recipes have 224, 64 samples a step, the same peak of the learning rate. What is left of `resnet50-18` is its
schedule, stretched to 22 epochs, blur pooling and growing sizes: 24, then 48 pixels, validated at 64, which are
MosaicML's proportions. Its label smoothing is off. `resnet50-90` has 20 epochs. A photo's class is the wallpaper that
it was cut from; photos of one wallpaper overlap, in training and validation, too.

Chosen with the seeds that are measured: peaks of 0.1, 0.2 and 0.4 and smoothing with seeds 1 and 2, the sizes and
the 22 epochs after 18 epochs from 32 pixels with all five. `--seeds 6,7,8,9,10` are fresh ones.

Everything has one thread, and the recipes take turns. A run's seconds are those that the kernel counted for its
process: start, reading, decoding, training, one validation, publishing. Runs are kept in OUT.runs.json as they end, so
a call that was ended goes on; a changed setting begins anew.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]
import photos  # noqa: E402
import sizes  # noqa: E402

CACHE = Path(os.environ.get("TRAINYARD_CACHE", Path.home() / ".cache" / "trainyard"))
PHOTOS, VAL_ONE_OF, FORM = 3040, 5, ((160, 120), 90)
FAST, PLAIN = "resnet50-18", "resnet50-90"
Tree = dict[str, Any]
BOTH: Tree = {
    "batch": {"global": 64, "micro": 0}, "optimizer": {"lr": 0.2, "lr_batch": 64}, "precision": "fp32",
    "validate": {"every_epochs": 0}, "checkpoint": {"every_steps": 0}, "device": "cpu", "wandb": {"mode": "off"},
}  # fmt: skip
MODEL: Tree = {"name": "sizes:net", "channels_last": True}
RECIPES: dict[str, Tree] = {
    PLAIN: {
        "recipe": PLAIN, "epochs": 20, "model": {**MODEL, "zero_init_last_bn": False},
        "data": {"image_size": 56, "val_resize": 64, "workers": 1},
        # its epochs 5, 30, 60 and 80 of 90
        "schedule": {"warmup_epochs": 1.1, "milestones": [6.7, 13.3, 17.8]},
    },
    FAST: {
        "recipe": FAST, "epochs": 22, "model": MODEL, "loss": {"label_smoothing": 0.0},
        "data": {
            "size_start": 24, "image_size": 48, "size_multiple": 8, "val_image_size": 64, "val_resize": 73, "workers": 1
        },
        "schedule": {"warmup_epochs": 2.4},
    },
}  # fmt: skip
Runs = dict[str, dict[str, list[float]]]  # by recipe and seed: top-1 in percent, seconds


def prepare() -> Path:
    """Create and prepare the photos, once; return the folder of shards."""
    from trainyard.prepare.build import build
    from trainyard.prepare.settings import parse

    root = CACHE / f"bench-recipe-{PHOTOS}"
    if not (root / "shards" / "manifest.json").exists():
        folder = photos.make_folder(root / "photos", PHOTOS, FORM, VAL_ONE_OF)
        source = {"kind": "path", "path": str(folder)}
        build(parse({"source": source, "out": str(root / "shards"), "layout": "imagefolder"}))
    return root / "shards"


def settings(name: str, seed: int, shards: Path) -> Tree:
    """Return the settings of a run; those of BOTH are overridden by the recipe's own here, section by section."""
    tree = {**BOTH, **RECIPES[name], "seed": seed}
    return {**tree, "data": {**tree["data"], "dir": str(shards)}}


def measure(path: Path, seeds: list[int]) -> Runs:
    """Train by both recipes with each seed, but for runs of these settings that the file has; return all runs."""
    made = {"both": BOTH, "recipes": RECIPES, "photos": [PHOTOS, VAL_ONE_OF]}
    kept = json.loads(path.read_text()) if path.exists() else {}
    runs: Runs = kept["runs"] if kept.get("settings") == json.loads(json.dumps(made)) else {FAST: {}, PLAIN: {}}
    shards = prepare()
    for seed, name in itertools.product(seeds, runs):
        if str(seed) not in runs[name]:
            runs[name][str(seed)] = [*sizes.train(settings(name, seed, shards))]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"settings": made, "runs": runs}, indent=1) + "\n")
            top1, seconds = runs[name][str(seed)]
            print(f"seed {seed}, {name}: top-1 {top1:.2f} %, {seconds:.1f} processor seconds", flush=True)
    return runs


def rows_of(runs: Runs) -> list[dict[str, Any]]:
    """Return a row for top-1 and one for seconds: medians over seeds, and the median of each seed's ratio."""
    seeds = sorted(set(runs[FAST]) & set(runs[PLAIN]), key=int)
    rows = []
    for index, (what, unit) in enumerate((("top-1", "%"), ("time to it", "processor s"))):
        ours, peer = ([runs[name][seed][index] for seed in seeds] for name in (FAST, PLAIN))
        ratio = statistics.median(b / a if index else a / b for a, b in zip(ours, peer, strict=True))
        rows.append({
            "name": f"{FAST} on a sample, {what}", "ours": round(statistics.median(ours), 2),
            "peer": round(statistics.median(peer), 2), "peer_name": PLAIN, "unit": unit, "ratio": round(ratio, 3),
            "runs": len(seeds),
        })  # fmt: skip
    return rows


def differences(runs: Runs) -> str:
    """Describe by how many points of top-1 the fast recipe is ahead, seed by seed, with the mean's standard error."""
    seeds = sorted(set(runs[FAST]) & set(runs[PLAIN]), key=int)
    points = [runs[FAST][seed][0] - runs[PLAIN][seed][0] for seed in seeds]
    error = statistics.stdev(points) / len(points) ** 0.5 if len(points) > 1 else float("nan")
    each = ", ".join(f"{value:+.2f}" for value in points)
    return f"{FAST} less {PLAIN}, points: {each}; mean {statistics.mean(points):+.2f}, standard error {error:.2f}"


def main() -> None:
    """Measure, and write the rows."""
    parser = argparse.ArgumentParser(description="Measure two recipes' time to accuracy.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="1,2,3,4,5", help="numbers with commas")
    options = parser.parse_args()
    runs = measure(options.out.with_suffix(".runs.json"), [int(seed) for seed in options.seeds.split(",")])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows_of(runs), indent=1) + "\n")
    print(differences(runs))


if __name__ == "__main__":
    main()
