"""Runs that are killed, stopped or failed by the GPU: the exit codes, and the losses after a resume.

Each run is the trainer as a process of its own, in a process group of one over NCCL. Its fault is injected as the tests
do it (tests/util/faulty.py) or real: memory that is too small, a device-side assert, an illegal memory access.
Several run at the same time.
"""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import training
from benchmarks.gpu.part import Part, beyond, main

ROOT = Path(__file__).resolve().parents[3]
STEPS, EVERY = 16, 4
FAULTS = [
    ("killed in step 10", "step kill 0 10", -signal.SIGKILL),
    ("SIGTERM in step 10", "step term 0 10", 143),
    ("CUDA error in step 10, injected", "forward cuda 0 10", 201),
    ("killed in a checkpoint", "copied kill 0 2", -signal.SIGKILL),
    ("NCCL error in step 10, injected", "stepped nccl 0 10", 138),
    ("CUDA error in validation, injected", "validating cuda 0 1", 201),
]
# What really fails: the exit code, words of the output, settings
REAL: dict[str, tuple[int, str, dict[str, Any]]] = {
    "memory too small in step 1": (2, "batch.micro", {"model__name": "benchmarks.gpu.models:greedy_at_once"}),
    "memory too small in step 6": (201, "enough before", {"model__name": "benchmarks.gpu.models:greedy"}),
    "illegal memory access": (201, "illegal memory access", {"model__name": "benchmarks.gpu.models:illegal"}),
    "device-side assert": (1, "device-side assert", {"model__name": "benchmarks.gpu.models:asserting"}),
    "device-side assert, without a group": (
        1, "device-side assert", {"model__name": "benchmarks.gpu.models:asserting", "run__name": "alone"}
    ),
}  # fmt: skip
LANES = 4  # runs at a time: each imports torch and makes a context of its own
OF_CPUS = 3  # one of each kind: there the tests inject a fault at every point (tests/unit/training/test_faults.py)
# Of the distance of losses (training.apart) after a resume on a GPU, whose sums have no fixed order; on a processor
# they are equal
BOUND = 0.02


def work(part: Part) -> None:
    """Run the faults beside each other."""
    faults = FAULTS if part.gpu else FAULTS[:OF_CPUS]
    jobs: dict[str, Callable[[], None]] = {}
    for name, (code, said, over) in REAL.items():
        if part.needs_gpu(name):
            continue
        if name == "illegal memory access" and not hasattr(torch.cuda, "_compile_kernel"):
            part.add(name, "not run", "this torch cannot compile a kernel from its source")
            continue
        jobs[name] = partial(failed, part, name, code, said, over)
    with part.guarded("undisturbed"):
        code, output = run(part, "undisturbed")
        part.check("undisturbed", code == 0, f"exit code {code}", output=output[-300:] if code else "")
    jobs |= {name: partial(struck, part, name, *how) for name, *how in faults}
    with ThreadPoolExecutor(LANES if part.gpu else 2) as pool:
        done = [(name, pool.submit(job)) for name, job in jobs.items()]
        for name, future in done:
            with part.guarded(name):
                future.result()


def struck(part: Part, name: str, fault: str, code: int) -> None:
    """Make a fault, then start again: it must end as the undisturbed run did."""
    point, action, *_ = fault.split()
    found, output = run(part, f"{point}-{action}", fault)
    again, more = run(part, f"{point}-{action}")
    losses, base = (read(part.folder / run / "metrics.jsonl") for run in (f"{point}-{action}", "undisturbed"))
    same = bool(base) and losses.keys() >= base.keys()
    columns = ([found[step] for step in sorted(base)] for found in (losses, base)) if same else None
    apart = training.apart(*columns) if columns else math.inf
    bounds = {"code": (code, code), "again": (0, 0), "apart": (None, BOUND if part.gpu else 0.0)}
    right = not beyond({"code": found, "again": again, "apart": apart, "bounds": bounds})
    text = f"exit code {found} (expected {code}), then {again}; losses {apart:.2%} apart"
    seen = "" if right else (output + more)[-1000:]
    part.check(name, right, text, bounds=bounds, code=found, again=again, apart=apart, output=seen)


def failed(part: Part, name: str, code: int, said: str, over: dict[str, Any]) -> None:
    """Make the GPU fail, and compare the exit code and the message."""
    found, output = run(part, name.replace(" ", "-"), **over)
    last = next((line for line in reversed(output.splitlines()) if line.startswith("error:")), output[-200:])
    text = f"exit code {found} (expected {code}): {last[:250]}"
    part.check(name, said in output, text, bounds={"code": (code, code)}, code=found)


def run(part: Part, name: str, fault: str = "", **over: Any) -> tuple[int, str]:
    """One start to its end: exit code and output."""
    process = start(part, name, fault, **over)
    output = process.communicate()[0]
    return process.returncode, output


def start(part: Part, name: str, fault: str = "", **over: Any) -> "subprocess.Popen[str]":
    """Start the trainer, with a fault."""
    usual = {"max_steps": STEPS, "checkpoint__every_steps": EVERY, "log__every_steps": 1}
    tree = training.settings(part.folder / name, part.device, **{**usual, **over})
    file = part.folder / f"{name}.yaml"
    file.write_text(json.dumps(tree))
    env = dict(os.environ) | {"FAULT": fault, "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests" / "util"), env["PYTHONPATH"]])
    module = "faulty" if tree["run"].get("name") == "alone" else "benchmarks.gpu.grouped"
    return subprocess.Popen([sys.executable, "-m", module, "--config", str(file)], cwd=ROOT, env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip


def read(path: Path) -> dict[int, float]:
    """Losses by step; of a step that was done again, the last one."""
    if not path.exists():
        return {}
    lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
    events = [json.loads(line) for line in lines]
    return {event["step"]: event["loss"] for event in events if event["event"] == "train"}


if __name__ == "__main__":
    main(work)
