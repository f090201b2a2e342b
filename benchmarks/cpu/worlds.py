"""How far rounding lets the same training drift apart on 1, 2 and 4 processes, and where it begins.

    python benchmarks/cpu/worlds.py OUT.json [--steps 30] [--seeds 917 1 2] [--worlds 1 2 4] [--set KEY=VALUE]...
                                  [--instructions all AVX2]

Trains the recipe `demo` in fp64 with `model.batch_norm: global` and a global batch of 24, or with the settings given,
with all the instructions that the processor has and with no more than AVX2, and prints

drift         the largest difference of losses between the numbers of processes, at steps and as the largest up to there
first step    what differs after one update: momentum (after one step the gradient), BatchNorm's statistics, weights,
              in units of the last place of the tensor's largest number
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

ROOT = Path(__file__).parents[2]
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
INSTRUCTIONS = {"all": {}, "AVX2": AVX2}
SETTINGS = {
    "precision": "fp64", "model.batch_norm": "global", "batch.global": 24, "batch.micro": 0, "device": "cpu",
    "epochs": None, "comm.gradients": "same", "log.every_steps": 1, "wandb.mode": "off",
    "checkpoint.every_steps": 1, "checkpoint.keep_last": 1000,  # the first one is compared
}  # fmt: skip
SHOWN = (1, 2, 5, 10, 17, 24, 30, 60)
KINDS = ("momentum", "statistics", "weights")


def train(run: Path, world: int, environment: dict[str, str], settings: dict[str, Any]) -> Path:
    """Train on so many processes, which must succeed."""
    launcher = ["-m", "trainyard", "launch", "--nproc-per-node", str(world)] if world > 1 else []
    options = [f"--set={key}={json.dumps(value)}" for key, value in {**settings, "run.dir": str(run)}.items()]
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "trainers.ddp", "--recipe", "demo", *options], text=True, check=False,
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, capture_output=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nthe run on {world} processes failed")
    return run


def losses(run: Path) -> list[float]:
    """Return the loss of each step."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["event"] == "train"]


def drift(found: list[list[float]]) -> list[float]:
    """At each step, the largest difference between runs."""
    return [max(step) - min(step) for step in zip(*found, strict=True)]


def tensors(run: Path) -> Iterator[tuple[str, str, Tensor]]:
    """Kind, name and numbers of each floating tensor in the checkpoint after step 1."""
    folder = run / "checkpoints" / "step-00000001"
    for file in ("optimizer", "model"):
        for name, tensor in sorted(load_file(folder / f"{file}.safetensors").items()):
            kind = "momentum" if file == "optimizer" else "statistics" if ".running_" in name else "weights"
            if tensor.is_floating_point() and tensor.dim():
                yield kind, name, tensor


def apart(one: Tensor, other: Tensor) -> float:
    """Return the largest difference, in units of the largest number's last place."""
    largest, difference = one.abs().max(), (one - other).abs().max()
    unit = torch.ldexp(torch.tensor(torch.finfo(one.dtype).eps, dtype=one.dtype), torch.frexp(largest)[1] - 1)
    return float(difference / unit)


def first_step(runs: dict[int, Path]) -> list[dict[str, Any]]:
    """Return what differs after one update between each two numbers of processes, by kind of tensor."""
    rows = []
    known = {world: list(tensors(run)) for world, run in runs.items()}
    for (a, b), wanted in itertools.product(itertools.combinations(known, 2), KINDS):
        pairs = [
            (apart(one, other), name)
            for (kind, name, one), (_, _, other) in zip(known[a], known[b], strict=True)
            if kind == wanted
        ]
        units, name = max(pairs)
        differ = sum(units > 0 for units, _ in pairs)
        rows.append({"worlds": [a, b], "kind": wanted, "tensors": len(pairs), "differ": differ,
                     "units": round(units, 2), "worst": name})  # fmt: skip
    return rows


def measure(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train on each number of processes with one set of instructions and one seed."""
    over = {key: json.loads(value) for key, _, value in (line.partition("=") for line in options.set)}
    settings = {**SETTINGS, "max_steps": options.steps, "seed": seed, **over}
    with tempfile.TemporaryDirectory(prefix="worlds-") as folder:
        runs = {}
        for world in options.worlds:
            runs[world] = train(Path(folder) / f"{world}", world, INSTRUCTIONS[name], settings)
        found = {world: losses(run) for world, run in runs.items()}
        return {
            "instructions": name, "seed": seed, "losses": found, "drift": drift(list(found.values())),
            "first_step": first_step(runs),
        }  # fmt: skip


def show(row: dict[str, Any]) -> None:
    """Print what was measured with one set of instructions and one seed."""
    steps = [step for step in SHOWN if step <= len(row["drift"])]
    figures = "  ".join(f"{step}: {row['drift'][step - 1]:.1e}" for step in steps)
    print(f"{row['instructions']}, seed {row['seed']}: drift at step {figures}; at most {max(row['drift']):.1e}")
    for line in row["first_step"]:
        print(
            f"    after step 1, {line['worlds'][0]} and {line['worlds'][1]} processes: {line['differ']} of "
            f"{line['tensors']} tensors of {line['kind']} differ, by at most {line['units']:g} units ({line['worst']})"
        )


def main() -> None:
    """Measure with each set of instructions and each seed, write the rows, print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[917, 1, 2])
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--instructions", nargs="+", choices=list(INSTRUCTIONS), default=list(INSTRUCTIONS))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    rows = []
    for name in options.instructions:
        for seed in options.seeds:
            rows.append(measure(name, seed, options))
            show(rows[-1])
    options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
