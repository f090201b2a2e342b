"""Prove the CUDA path on one GPU: every part in a process of its own with a time limit, results as they come.

    python3 -m benchmarks.gpu.run [--parts first|second|modes,groups] [--budget 540] [--device cuda|cpu] [--out DIR]
    python3 -m benchmarks.gpu.run --check result.json...

Without --parts it runs the first half, nine minutes; the second half takes as long. It needs Python 3.12, torch and
torchvision, and no network; what else is missing comes from build/gpu-wheels, which `make gpu-wheels` fills beforehand.
A part that takes too long is killed with all that it started. Each part's results are in OUT/PART.json, its output in
PART.log; OUT/page.md has all of them for people, and OUT/result.json for programs, with machine, versions and hashes.
--check runs nothing: it judges such files again, from wherever they come (benchmarks/gpu/check.py).
What parts share (pictures, compiled programs) stays in build/gpu-cache. Without a GPU, what needs one says so, and the
rest runs on tiny sizes. Ends with 1 if something failed.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import check, machine, page
from benchmarks.gpu.part import Row, finite, write

ROOT = Path(__file__).resolve().parents[2]
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
PATIENCE = 6  # how much longer limits are on a machine without a GPU, which has no nine minutes to keep to
BUDGET = 540.0  # of one half
GIVE_UP = 20.0
LOOK = 60.0
SHOWN = 40  # lines of a failed part's output that go into its results


@dataclass(frozen=True)
class Item:
    """A part of the list: its module in benchmarks.gpu.parts, what it shows, and its limit in seconds."""

    name: str
    title: str
    seconds: float


# In order of worth: with little time, the last ones of a half are left out
FIRST = (
    Item("modes", "Precisions, optimizers, losses, memory: losses, waits for the GPU", 140),
    Item("deterministic", "The same bits twice", 30),
    Item("groups", "DDP and FSDP over NCCL, a world of one", 70),
    Item("faults", "Kills, signals, errors of the GPU: exit codes, resumed losses", 110),
    Item("kernels", "Global BatchNorm, normalisation and NCCL beside plain forms", 25),
    Item("speed", "ResNet-50 beside torchvision, timm and DALI", 105),
)  # fmt: skip
SECOND = (
    Item("compile", "torch.compile, CUDA graphs, checkpointing under DDP", 200),
    Item("speed_compiled", "ResNet-50, compiled", 120),
    Item("tools", "Preflight, export, evaluate, predict", 50),
    Item("checkpoint", "What a checkpoint costs the loop", 35),
    Item("profile", "Where a step's time goes", 35),
    Item("loader", "The loader alone, all cores", 30),
)  # fmt: skip
LONG = (Item("tune", "torch.compile's max-autotune", 500),)  # by name alone
WITH_GRAPHS = ("compile", "tune")
ITEMS = (*FIRST, *SECOND, *LONG)
HALVES = {"first": FIRST, "second": SECOND, "all": (*FIRST, *SECOND)}


def main() -> int:
    """Run what was asked for."""
    options = parser().parse_args()
    if options.check:
        return check.report(options.check, ROOT)
    options.out.mkdir(parents=True, exist_ok=True)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # whatever a part leaves behind becomes our child
    begin = time.monotonic()
    try:
        env, added = machine.prepared(options.wheels, options.cache)
    except machine.MissingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    about = look(options, env)
    if not about:
        return 1
    device = options.device if options.device != "auto" else ("cuda" if about.get("gpu") else "cpu")
    chosen = chosen_items(options.parts)
    say(f"{about.get('gpu') or 'no GPU that torch can use'}; {added}")
    found: list[dict[str, Any]] = []
    for item in chosen:
        slowness = options.slowness if device == "cuda" else PATIENCE
        left = options.budget * slowness - (time.monotonic() - begin)
        found.append(one(item, device, options.out, env, left, slowness))
        about |= {"device": device, "carried": added}
        page.write(options.out / "page.md", about, found)
        write(options.out / "result.json", result_of(about, [item.name for item in chosen], found))
    failed = [result["name"] for result in found if result["state"] not in ("ok", "needs a GPU")]
    say(
        f"{time.monotonic() - begin:.0f} s, {options.out / 'page.md'}"
        + (f"; FAILED: {', '.join(failed)}" if failed else "")
    )
    return int(bool(failed))


def chosen_items(parts: list[str]) -> list[Item]:
    """Return the parts of a list of names and halves."""
    halves = [item for name in parts for item in HALVES.get(name, ())]
    return [item for item in ITEMS if item in halves or item.name in parts]


def result_of(about: Mapping[str, Any], asked: list[str], found: list[dict[str, Any]]) -> dict[str, Any]:
    """All results of this call in one: machine, versions, hashes, then parts with their rows and figures."""
    result: dict[str, Any] = finite({
        "format": check.FORMAT, "time": round(time.time(), 1), "machine": dict(about), "source": machine.source(ROOT),
        "asked": asked, "rows": check.count_states(found), "parts": found,
    })  # fmt: skip
    return {**result, "sha256": check.digest(result)}


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    called = sys.argv[0].partition(" ")[0] == "trainyard"
    name = "trainyard prove" if called else "python3 -m benchmarks.gpu.run"
    result = argparse.ArgumentParser(prog=name, description=(__doc__ or "").partition("\n")[0])
    result.add_argument(
        "--parts", type=named, default=["first"], help=f"{', '.join(HALVES)}, or of {','.join(i.name for i in ITEMS)}"
    )
    result.add_argument("--check", type=Path, nargs="+", metavar="FILE", help="judge results again, and run nothing")
    result.add_argument("--budget", type=float, default=BUDGET, help="seconds for all parts together, on a GPU")
    result.add_argument(
        "--slowness", type=float, default=1.0, help="factor for all limits, for a GPU far slower than an H100"
    )
    result.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    result.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", help="folder of the results")
    result.add_argument("--cache", type=Path, default=ROOT / "build" / "gpu-cache", help="folder of what parts share")
    result.add_argument("--wheels", type=Path, default=ROOT / "build" / "gpu-wheels", help="folder of carried packages")
    return result


def named(text: str) -> list[str]:
    """Return the names of an option; raises ArgumentTypeError for one that is none."""
    names = text.split(",")
    if unknown := [name for name in names if name not in HALVES and name not in {item.name for item in ITEMS}]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: no such part")
    return names


def look(options: argparse.Namespace, env: Mapping[str, str]) -> dict[str, Any]:
    """Return what the machine is; nothing if it cannot say so in LOOK seconds, or torch fails here."""
    path = options.out / "machine.json"
    path.unlink(missing_ok=True)
    state, _ = bounded(
        [sys.executable, "-m", "benchmarks.gpu.machine", str(path)], options.out / "machine.log", env, LOOK
    )
    if not path.exists():
        print(
            f"error: torch or the GPU does not answer here ({state}): see {options.out / 'machine.log'}",
            file=sys.stderr,
        )
        return {}
    about: dict[str, Any] = json.loads(path.read_text())
    return about


def one(  # noqa: PLR0917
    item: Item, device: str, out: Path, env: Mapping[str, str], left: float, slowness: float = 1.0
) -> dict[str, Any]:
    """Run a part, for at most the seconds that are left for all, and complete its results."""
    path, log = out / f"{item.name}.json", out / f"{item.name}.log"
    path.unlink(missing_ok=True)
    limit = item.seconds * slowness
    if left < 10:
        result = {"name": item.name, "title": item.title, "state": "no time left", "seconds": 0.0, "rows": []}
        write(path, result)
        say(f"{item.name}: no time left")
        return result
    say(f"{item.name}: {item.title} (at most {min(limit, left):.0f} s)")
    begin = time.monotonic()
    if device == "cpu":
        env = {**env, "OMP_NUM_THREADS": "1"}  # sizes are tiny, and threads that wait for each other cost the most
    if item.name not in WITH_GRAPHS and "PYTORCH_ALLOC_CONF" not in env:
        env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **env}  # as the trainers' own programs have it
    command = [sys.executable, "-m", f"benchmarks.gpu.parts.{item.name}", str(path), "--device", device]
    state, code = bounded(command, log, env, min(limit, left))
    rows = read_rows(path)
    for left_over in out.glob(f"{item.name}-*"):  # of a part that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    if state == "ended":
        crashed = code != 0 and all(row["state"] != "failed" for row in rows)
        state = f"crashed ({code})" if crashed or not rows else check.state_of(rows)
    result = {"name": item.name, "title": item.title, "state": state, "seconds": round(time.monotonic() - begin, 1),
              "device": device, "rows": rows}  # fmt: skip
    if state not in ("ok", "needs a GPU"):
        result["output"] = log.read_text(errors="replace").splitlines()[-SHOWN:]
    write(path, result)
    for row in rows:
        print(f"   {row['state']:12} {row['name']}{': ' + row['text'] if row['text'] else ''}", flush=True)
    say(f"{item.name}: {state}, {result['seconds']} s")
    return result


def read_rows(path: Path) -> list[Row]:
    """Return what a part has written of its results so far."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        rows: list[Row] = json.loads(path.read_text())["rows"]
        return rows
    return []


def bounded(command: list[str], log: Path, env: Mapping[str, str], seconds: float) -> tuple[str, int]:
    """Run a command for at most so long and end all that it started; how it ended, and its exit code."""
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            code, state = process.wait(seconds), "ended"
        except subprocess.TimeoutExpired:
            code, state = -signal.SIGKILL, f"killed after {seconds:.0f} s"
        finally:
            end_children()
            process.wait()
    return state, code


def end_children() -> None:
    """Kill every process below this one, those that left their parent's session included, until none is left.

    One that the kernel does not let go (in the GPU's driver, say) is left behind after GIVE_UP seconds.
    """
    end = time.monotonic() + GIVE_UP
    while (children := below(os.getpid())) and time.monotonic() < end:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def below(pid: int) -> list[int]:
    """Return the processes that descend from one."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *below(child)]
    return found


def say(text: str) -> None:
    """Print a line on the progress."""
    print(f"== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
