"""What a calm run pays for being watched: CPU time of heartbeats, hang detection and the lease, of all its time.

    python benchmarks/cpu/calm.py OUT.json [--steps 600]

Two processes train ResNet-18 at 64 px on generated pictures with the default settings, and a checkpoint as often as
`checkpoint.every_seconds: auto` chooses. Counted are the threads that watch, and the calls in each step; what a
checkpoint holds up is the benchmark `checkpoint`'s. The share bounds from above how much slower a step is.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import ours

WATCHING = ("watchdog", "heartbeats", "answers", "lease")  # names of threads
TICKS = os.sysconf("SC_CLK_TCK")


class Counted:
    """The run's watchdog, with the time that its calls take in the thread that trains."""

    def __init__(self, watchdog: Any) -> None:
        self._watchdog, self.seconds = watchdog, 0.0

    def beat(self, what: str, step: int) -> None:
        """Pass a beat on; the engine calls it twice in each step."""
        began = time.perf_counter()
        self._watchdog.beat(what, step)
        self.seconds += time.perf_counter() - began

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watchdog, name)


def used() -> dict[str, float]:
    """Return the CPU seconds of the threads that watch, by name."""
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        if thread.name in WATCHING:
            fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
            found[thread.name] = found.get(thread.name, 0.0) + sum(map(int, fields[11:13])) / TICKS
    return found


def inside(out: Path, folder: Path, steps: int) -> None:
    """Train in one process; the first writes what its threads have used."""
    from trainyard.training import loop

    trainer = ours.resumed(
        run={"dir": str(folder / "run")}, max_steps=steps, device="cpu", wandb={"mode": "off"},
        batch={"per_process": 16}, optimizer={"lr": 0.01},
        data={"dir": "synthetic", "image_size": 64, "synthetic_samples": 4096, "workers": 1},
        model={"name": "resnet18", "num_classes": 100}, checkpoint={"every_seconds": "auto"},
    )  # fmt: skip
    counted: Any = Counted(trainer.records.watchdog)
    before, began = used(), time.perf_counter()
    loop.train(replace(trainer, records=replace(trainer.records, watchdog=counted)))
    seconds, after = time.perf_counter() - began, used()
    if trainer.strategy.rank == 0:
        threads = {name: after[name] - before.get(name, 0.0) for name in after}
        out.write_text(json.dumps({"steps": steps, "seconds": seconds, "calls": counted.seconds, "threads": threads}))
    ours.leave(trainer)


def main() -> None:
    """Measure, write the figures, print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.out, options.inside, options.steps)
    with tempfile.TemporaryDirectory(prefix="calm-") as folder:
        ours.launch(__file__, 2, str(options.out), "--steps", str(options.steps), "--inside", folder)
    found = json.loads(options.out.read_text())
    parts = {"calls in the steps": found["calls"], **found["threads"]}
    for name, seconds in parts.items():
        print(f"{name:20} {seconds:7.3f} s of {found['seconds']:.0f} s  {seconds / found['seconds']:8.4%}")
    print(f"{'all':20} {sum(parts.values()):7.3f} s{'':12} {sum(parts.values()) / found['seconds']:8.4%}")


if __name__ == "__main__":
    main()
