"""Measures preparation against its peers, side by side in one run: from a zip of photos to something trainable.

python benchmarks/cpu/prepare.py OUT.json [--runs 3] [--part local|slow|far]...  (after `hack/bootstrap photos bench`)

local   5,200 photos on a local disk, against unzip and a packing script, webdataset's ShardWriter, LitData's optimize
slow    a folder where each file operation takes 10 ms longer (slowfs.c), against unzip
far     over HTTP with 50 ms round trip, 512 KiB window and 2 % resets (longpipe.py), 16 connections against one
"""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from photos import make_folder, make_zip  # noqa: E402

CACHE = Path(os.environ.get("TRAINYARD_CACHE", Path.home() / ".cache" / "trainyard"))
PHOTOS, SLOW_PHOTOS, FAR_PHOTOS = 5200, 208, 1560
MEMORY_BOUND, DISK_BOUND = 300.0, 1.1
DEFAULT = "ours, images rewritten"  # `seekable: true`
Row = dict[str, Any]


def main() -> None:
    """Measure the parts that are asked for and write the rows."""
    parser = argparse.ArgumentParser(description="Measure preparation against its peers.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--part", action="append", choices=list(PARTS), help="measure only this")
    options = parser.parse_args()
    # Clean up also when it is ended from outside
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    folder = make_folder(CACHE / "photos", PHOTOS)
    work = Path(tempfile.mkdtemp(prefix="trainyard-bench-", dir=os.environ.get("BENCH_DIR")))
    rows: list[Row] = []
    try:
        for part in options.part or PARTS:
            rows += PARTS[part](folder, work, options.runs)
    finally:
        shutil.rmtree(work)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        against = f"{row['peer_name']} {row['peer']}"
        print(f"{row['name']}: {row['ours']} {row['unit']}, {against}, ratio {row['ratio']}")


def local(folder: Path, work: Path, runs: int) -> list[Row]:
    """From a zip on a local disk, deflated as Kaggle's and as `zip` makes them."""
    archive = make_zip(CACHE / f"photos-{PHOTOS}.zip", folder, deflated=True)
    payload = sum(path.stat().st_size for path in folder.glob("*/*/*.jpg"))
    peer = lambda name: [sys.executable, str(HERE / "peers.py"), name, str(archive)]  # noqa: E731
    peers = {
        "unzip and tar": lambda out: [*peer("unzip"), str(out)],
        "webdataset": lambda out: [*peer("webdataset"), str(out)],
        "litdata": lambda out: [*peer("litdata"), str(out)],
    }
    both = {"ours": lambda out: ours(archive, out), DEFAULT: lambda out: ours(archive, out, seekable=True)}
    found = side_by_side(both | peers, work, runs)
    name = f"local zip of {PHOTOS:,} photos to trainable"
    rows = [row(name, "s", found, peer, "seconds") for peer in peers]
    rows += [row(f"{name}, images rewritten (the default)", "s", found, peer, "seconds", way=DEFAULT) for peer in peers]
    disk, memory = median(found["ours"], "disk") / payload, median(found["ours"], "memory")
    rows.append(bound("peak disk beside the archive", "x payload", disk, DISK_BOUND, runs))
    rows.append(bound("peak memory with 8 workers", "MB", memory, MEMORY_BOUND, runs))
    return rows


def slow(folder: Path, work: Path, runs: int) -> list[Row]:
    """Into a folder in which every file operation takes 10 ms longer."""
    library = work / "slowfs.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, HERE / "slowfs.c", "-ldl"], check=True)
    archive = make_zip(work / "slow.zip", sampled(folder, work / "slow-photos", SLOW_PHOTOS), deflated=True)
    delayed = {"LD_PRELOAD": str(library), "SLOWFS_BELOW": str(work / "out"), "SLOWFS_MS": "10"}
    ways = {
        "ours": lambda out: ours(archive, out),
        "unzip": lambda out: ["unzip", "-q", str(archive), "-d", str(out)],
    }
    found = side_by_side(ways, work, runs, delayed)
    return [row(f"{SLOW_PHOTOS} photos, 10 ms more per file operation", "s", found, "unzip", "seconds")]


def far(folder: Path, work: Path, runs: int) -> list[Row]:
    """From a server far away."""
    archive = make_zip(work / "far.zip", sampled(folder, work / "far-photos", FAR_PHOTOS), deflated=True)
    subprocess.run(ours(archive, work / "near" / "p"), check=True, capture_output=True)
    with subprocess.Popen([sys.executable, HERE / "longpipe.py", archive], stdout=subprocess.PIPE, text=True) as server:
        try:
            url = f"http://127.0.0.1:{server.stdout.readline().strip()}/far.zip"
            ways = {
                "ours": lambda out: ours(url, out, workers=16),
                "ours, one connection": lambda out: ours(url, out, workers=1),
                "curl, the download alone": lambda out: ["curl", "-sfo", str(work / "download"), url],
            }
            check = lambda out: same_shards(out, work / "near" / "p")  # noqa: E731
            found = side_by_side(ways, work, runs, check=check)
        finally:
            server.kill()
    if not sum(run["retries"] for run in found["ours"]):
        raise SystemExit("no answer was reset: this was no test of resets")
    name = f"{FAR_PHOTOS:,} photos over 50 ms, 512 KiB window, 2 % resets, 16 connections"
    return [row(name, "s", found, peer, "seconds") for peer in ways if peer != "ours"]


PARTS: dict[str, Callable[[Path, Path, int], list[Row]]] = {"local": local, "slow": slow, "far": far}


def ours(source: Path | str, out: Path, workers: int = 8, seekable: bool = False) -> list[str]:
    """Return the command that prepares; images keep their bytes, as with the others, unless `seekable`."""
    kind, key = ("path", "path") if isinstance(source, Path) else ("http", "url")
    settings = {
        "source.kind": kind,
        f"source.{key}": source,
        "out": out,
        "layout": "imagefolder",
        "workers": workers,
        "seekable": str(seekable).lower(),
    }
    line = [sys.executable, "-m", "trainyard", "prepare", "build"]
    return [*line, *(text for key, value in settings.items() for text in ("--set", f"{key}={value}"))]


def side_by_side(
    ways: dict[str, Callable[[Path], list[str]]],
    work: Path,
    runs: int,
    environment: dict[str, str] | None = None,
    check: Callable[[Path], None] | None = None,
) -> dict[str, list[dict[str, float]]]:
    """Run every method in turn, `runs` times, each into an empty folder after a sync."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(runs):
        for name, command in ways.items():
            out = work / "out"
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            os.sync()
            found[name].append(measured(command(out / "p"), out if name == "ours" else None, environment or {}))
            print(f"{name}: {found[name][-1]['seconds']:.2f} s", file=sys.stderr)
            if check and name.startswith("ours"):
                check(out / "p")
    shutil.rmtree(out)
    return found


def measured(command: list[str], out: Path | None, environment: dict[str, str]) -> dict[str, float]:
    """Run a command: seconds until it ended, the most bytes below its folder, and its peak memory in MB.

    Memory is the largest VmHWM that was seen of the command's own process. A folder of thousands of files is not looked
    at (None): that would cost the command time.
    """
    started = time.perf_counter()
    most = {"disk": 0.0, "memory": 0.0}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
        watching = threading.Thread(target=_watch, args=(process, out, most))
        watching.start()
        try:
            code = process.wait()
        finally:
            process.kill()
        seconds = time.perf_counter() - started
        watching.join()
        log.seek(0)
        said = log.read().decode()
    if code:
        raise SystemExit(f"{' '.join(map(str, command))} ended {code}:\n{said[-3000:]}")
    retries = sum(int(count) for count in re.findall(r"(\d+) retries", said))
    return {"seconds": seconds, "disk": max(most["disk"], used(out)), "memory": most["memory"], "retries": retries}


def _watch(process: subprocess.Popen[bytes], out: Path | None, most: dict[str, float]) -> None:
    """Sample memory and disk ten times a second."""
    while process.poll() is None:
        most["disk"] = max(most["disk"], used(out))
        try:
            text = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            return
        peaks = [float(line.split()[1]) * 1024 / 1e6 for line in text.splitlines() if line.startswith("VmHWM")]
        most["memory"] = max([most["memory"], *peaks])
        time.sleep(0.1)


def used(folder: Path | None) -> float:
    """Bytes that a folder's files take on disk; those that vanish meanwhile do not count."""
    total = 0
    for parent, _, names in os.walk(folder) if folder else ():
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512  # noqa: PTH118
            except OSError:
                continue
    return float(total)


def same_shards(out: Path, wanted: Path) -> None:
    """Compare all prepared files with those of an undisturbed preparation, except the recorded source."""
    for path in sorted(wanted.glob("*/*")):
        if path.parent.name in ("train", "val") and path.read_bytes() != (out / path.relative_to(wanted)).read_bytes():
            raise SystemExit(f"{path.name} came out differently")


def sampled(folder: Path, to: Path, count: int) -> Path:
    """Link evenly chosen photos into a separate folder."""
    for split in ("train", "val"):
        pictures = sorted(folder.glob(f"{split}/*/*.jpg"))
        for picture in pictures[:: PHOTOS // count]:
            link = to / picture.relative_to(folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.hardlink_to(picture)
    return to


def median(found: list[dict[str, float]], key: str) -> float:
    """Median over the runs."""
    return statistics.median(run[key] for run in found)


def row(
    name: str, unit: str, found: dict[str, list[dict[str, float]]], peer: str, key: str, *, way: str = "ours"
) -> Row:
    """One line of the result, of one of our ways; a ratio above 1 is in our favour."""
    mine, theirs = median(found[way], key), median(found[peer], key)
    return {
        "name": name,
        "ours": round(mine, 2),
        "peer": round(theirs, 2),
        "peer_name": peer,
        "unit": unit,
        "ratio": round(theirs / mine, 2),
        "runs": len(found[peer]),
    }


def bound(name: str, unit: str, mine: float, most: float, runs: int) -> Row:
    """One line that compares with what was promised."""
    numbers = {"ours": round(mine, 3), "peer": most, "peer_name": "bound", "unit": unit, "ratio": round(most / mine, 2)}
    return {"name": name, **numbers, "runs": runs}


if __name__ == "__main__":
    main()
