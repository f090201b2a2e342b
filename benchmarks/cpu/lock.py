"""What holds the interpreter's lock in a sample's path, and what that leaves of many cores; needs only two.

python benchmarks/cpu/lock.py [--data DIR] [--threads 1 2 8 64]      (after `benchmarks/cpu/run loader` has run)

The library's calls (decoding, augmenting), reads and checksums work without the lock. Where they are replaced by
nothing, what is left of a sample's processor time is Python's, which holds it. Where they sleep for as long as they
take, 64 threads run as on 64 cores, but for the processor time of Python and of the kernel, which wakes them: a lower
bound of what so many cores give. Per case: both times in us, the lock's part of them, and samples a second with 1, 2,
... decoding threads, with the share of that many times one thread's.
"""

import argparse
import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1])]
import numpy as np  # noqa: E402
import ours  # noqa: E402

from trainyard import native  # noqa: E402
from trainyard.data import decode  # noqa: E402
from trainyard.data.loader import Loader  # noqa: E402
from trainyard.shards import reader  # noqa: E402

CACHE = Path(os.environ.get("TRAINYARD_CACHE", Path.home() / ".cache" / "trainyard"))
BATCH = 256
_read = reader._read_exactly
A3 = {"policy": "rand_increasing", "policy_magnitude": 6, "interpolation": "bicubic"}
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "none": ({}, 224), "trivial": ({"policy": "trivial"}, 224), "rand": ({"policy": "rand"}, 224),
    "trivial and erase": ({"policy": "trivial", "erase": 0.25}, 224), "a3": (A3, 160),
}  # fmt: skip


def loader(data: Path, case: str, workers: int) -> Loader:
    """Return the training split's loader."""
    augment, size = CASES[case]
    return ours.open_loader(data, BATCH, augment, workers=workers, image_size=size, prefetch=4)


def seconds_of_a_sample(found: Loader, samples: int = 100) -> tuple[float, float]:
    """Processor seconds of a sample's reading, and of its making, in one thread."""
    spent = []
    for sample in range(0, len(found.labels), len(found.labels) // samples):
        ids = np.array([sample])
        out = decode.torch.empty((1, 3, found.size, found.size), dtype=decode.torch.uint8)
        out = out.contiguous(memory_format=decode.torch.channels_last)[0]
        times = []
        for _ in range(5):
            begin = time.thread_time()
            content = found.read(ids)[0]
            read = time.thread_time()
            found.make(content, sample, 0, out)
            times.append((read - begin, time.thread_time() - read))
        spent.append(np.min(times, axis=0))
    reading, making = np.mean(spent, axis=0)
    return float(reading), float(making)


def asleep(seconds: float, result: Any) -> Callable[..., Any]:
    """Return a function that waits without the lock instead of working without it."""
    wait, micro = ctypes.CDLL(None).usleep, int(seconds * 1e6)

    def waits(*_: object) -> Any:
        if micro > 0:
            wait(micro)
        return result

    return waits


def replace_what_is_free(reading: float, making: float) -> None:
    """Let reads and the library's calls sleep for this long; headers are still read, under the lock."""
    real = native.library()
    kept = {name: getattr(real, name) for name in ("trainyard_version", "trainyard_size")}
    library = SimpleNamespace(**kept, trainyard_make=asleep(making, 0))
    decode._library = lambda: library
    content: dict[tuple[int, int, int], bytes] = {}
    read, wait = _read, asleep(reading, None)

    def remembered(descriptor: int, size: int, offset: int) -> bytes:
        key = descriptor, size, offset
        if key not in content:
            content[key] = read(descriptor, size, offset)
        wait()
        return content[key]

    reader._read_exactly = remembered
    reader.zlib = SimpleNamespace(crc32=lambda _: 0)


def replaced(data: Path, case: str, workers: int) -> Loader:
    """Return the loader after `replace_what_is_free`."""
    found = loader(data, case, workers)
    found.read.__self__._checksums[:] = 0  # what the replaced function gives
    return found


def rate(found: Loader, seconds: float) -> float:
    """Return samples a second."""
    batches = ours.batches(found, BATCH)
    for _ in range(10):
        next(batches)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds or count < 20 * BATCH:
        count += len(next(batches).ids)
    passed = time.perf_counter() - begin
    batches.close()
    return count / passed


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description="What the interpreter's lock leaves of many cores.")
    parser.add_argument("--data", type=Path, default=CACHE / "bench-loader-99" / "prepared")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 8, 16, 64])
    parser.add_argument("--seconds", type=float, default=4)
    options = parser.parse_args()
    times = {case: seconds_of_a_sample(loader(options.data, case, 1)) for case in CASES}
    for case, (reading, making) in times.items():
        replace_what_is_free(0, 0)
        held = seconds_of_a_sample(replaced(options.data, case, 1))
        replace_what_is_free(reading - held[0], making - held[1])
        rates = [rate(replaced(options.data, case, count), options.seconds) for count in options.threads]
        first = rates[0] / options.threads[0]
        told = [f"{n}: {each:,.0f} ({each / first / n:.0%})" for n, each in zip(options.threads, rates, strict=True)]
        parts = (f"{whole * 1e6:.0f} ({part * 1e6:.0f})" for whole, part in zip((reading, making), held, strict=True))
        print(f"{case}: read {next(parts)}, made {next(parts)} us; threads {', '.join(told)}", flush=True)


if __name__ == "__main__":
    main()
