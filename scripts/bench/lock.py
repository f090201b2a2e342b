"""What holds the interpreter's lock in a sample's path, and what that leaves of many cores; needs only two.

python scripts/bench/lock.py [--data DIR] [--threads 1 2 8 64]      (after `scripts/bench/run loader` has made the photos)

The library's calls (decoding, augmenting), reads and checksums work without the lock. Here each of them sleeps instead,
for as long as it takes with one thread, so that 64 threads run as on 64 cores, and only Python computes. From that:

held       processor time of Python per sample, over all of the loader's threads, with one decoding thread: us
rates      samples a second with 1, 2, ... decoding threads, and the share of that many times one thread's
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

from trainers import config, native  # noqa: E402
from trainers.data import decode  # noqa: E402
from trainers.data.loader import Loader  # noqa: E402
from trainers.data.sampler import Order  # noqa: E402
from trainers.data.splits import open_splits  # noqa: E402
from trainers.shards import reader  # noqa: E402

CACHE = Path(os.environ.get("TRAINYARD_CACHE", Path.home() / ".cache" / "trainyard"))
BATCH = 256
A3 = {"policy": "rand_increasing", "policy_magnitude": 6, "interpolation": "bicubic"}
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "none": ({}, 224), "trivial": ({"policy": "trivial"}, 224), "rand": ({"policy": "rand"}, 224),
    "trivial and erase": ({"policy": "trivial", "erase": 0.25}, 224), "a3": (A3, 160),
}  # fmt: skip


def loader(data: Path, case: str, workers: int) -> Loader:
    """The training split's loader."""
    augment, size = CASES[case]
    settings = {"dir": str(data), "workers": workers, "image_size": size, "prefetch": 4}
    over = {"data": settings, "augment": augment, "model": {"channels_last": True}}
    return open_splits(config.build({"epochs": 1, "batch": {"global": BATCH}, **over}), pin=False).train


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
    """A function that waits without the lock instead of working without it."""
    wait, micro = ctypes.CDLL(None).usleep, int(seconds * 1e6)

    def waits(*_: object) -> Any:
        wait(micro)
        return result

    return waits


def replace_what_is_free(reading: float, making: float) -> None:
    """Let reads and the library's calls sleep for this long; headers are still read, under the lock."""
    real = native.library()
    library = SimpleNamespace(trainyard_version=real.trainyard_version, trainyard_size=real.trainyard_size, trainyard_make=asleep(making, 0))
    decode._library = lambda: library
    content: dict[tuple[int, int, int], bytes] = {}
    read, wait = reader._read_exactly, asleep(reading, None)

    def remembered(descriptor: int, size: int, offset: int) -> bytes:
        key = descriptor, size, offset
        if key not in content:
            content[key] = read(descriptor, size, offset)
        wait()
        return content[key]

    reader._read_exactly = remembered
    reader.zlib = SimpleNamespace(crc32=lambda _: 0)


def rate(found: Loader, seconds: float) -> tuple[float, float]:
    """Samples a second, and processor seconds of a sample."""
    found.read.__self__._checksums[:] = 0  # what the replaced function gives
    order = Order(len(found.labels), BATCH, 1)
    batches = found.batches((order.epoch(step), order.slice(step, 0, 1)) for step in range(10**6))
    for _ in range(10):
        next(batches)
    begin, spent, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - begin < seconds or count < 20 * BATCH:
        count += len(next(batches).ids)
    passed, computed = time.perf_counter() - begin, time.process_time() - spent
    batches.close()
    return count / passed, computed / count


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description="What the interpreter's lock leaves of many cores.")
    parser.add_argument("--data", type=Path, default=CACHE / "bench-loader" / "prepared")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 8, 16, 64])
    parser.add_argument("--seconds", type=float, default=4)
    options = parser.parse_args()
    times = {case: seconds_of_a_sample(loader(options.data, case, 1)) for case in CASES}
    for case, (reading, making) in times.items():
        replace_what_is_free(reading, making)
        found = [rate(loader(options.data, case, count), options.seconds) for count in options.threads]
        first = found[0][0] / options.threads[0]
        told = ", ".join(
            f"{count}: {wall:,.0f} ({wall / first / count:.0%})"
            for count, (wall, _) in zip(options.threads, found, strict=True)
        )
        print(f"{case}: reading {reading * 1e6:.0f} us, making {making * 1e6:.0f} us; held {found[0][1] * 1e6:.0f} us; {told}")


if __name__ == "__main__":
    main()
