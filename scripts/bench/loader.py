"""Measures the loader against its peers: real photos of ImageNet's average size to 224 pixels, on two cores.

python scripts/bench/loader.py OUT.json [--runs 5] [--seconds 8]      (after `scripts/bootstrap photos bench`)

Each does RandomResizedCrop(224) and a flip and gives batches of 64 uint8 pictures; the files are in the page cache.

ours         prepared shards, threads, decoding of the area alone (trainers/data/loader.py)
imagefolder  torchvision's ImageFolder (Pillow) and transforms, torch's DataLoader
torchvision  files, torchvision.io.decode_jpeg and transforms v2, torch's DataLoader
webdataset   webdataset's shards, decoded and cropped as the line above
litdata      LitData's chunks and StreamingDataLoader, decoded and cropped as the line above
dali         NVIDIA DALI's pipeline on the CPU: reader, random-crop decoder, resize, flip

Then ours, ours without readahead, and torchvision once more with 10 ms added to each open and each read (slowread.c).

In every run all are measured, one after the other, each in its own process on the same two cores: two workers,
a warm-up, then batches for some seconds. Medians over the runs; ratio = ours / peer. The rows per processor second
divide by the time that all threads and workers computed, which other programs on the machine hardly change.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
import peers  # noqa: E402
import photos  # noqa: E402

CACHE = Path(os.environ.get("TRAINYARD_CACHE", Path.home() / ".cache" / "trainyard"))
PHOTOS, BATCH, SIZE, WORKERS = 2080, 64, 224, 2
Batches = Iterator[Any]


def ours(root: Path, readahead: int = 1) -> Batches:
    """Batches of the trainers' own loader, in the order that training would take."""
    from trainers import config
    from trainers.data.sampler import Order
    from trainers.data.splits import open_splits

    data = {"dir": str(root / "prepared"), "workers": WORKERS, "readahead": readahead}
    settings = {"data": data, "model": {"channels_last": True}}
    train = open_splits(config.build({"epochs": 1, "batch": {"global": BATCH}, **settings}), pin=False).train
    order = Order(len(train.labels), BATCH, 1)
    return train.batches((order.epoch(step), order.slice(step, 0, 1)) for step in range(10**6))


def no_readahead(root: Path) -> Batches:
    """The same, but the threads that decode read, too."""
    return ours(root, readahead=0)


def imagefolder(root: Path) -> Batches:
    """Pillow and torchvision's first transforms, as in PyTorch's ImageNet example."""
    from torchvision import datasets, transforms

    steps = [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    return repeated(datasets.ImageFolder(str(root / "photos/train"), transforms.Compose(steps)))


def torchvision(root: Path) -> Batches:
    """Torchvision's own decoder and its tensor transforms."""
    from torchvision import datasets

    def read(path: str) -> Any:
        return cropped(Path(path).read_bytes())

    return repeated(datasets.ImageFolder(str(root / "photos/train"), loader=read))


def webdataset(root: Path) -> Batches:
    """Webdataset's shards, shuffled as its documentation does."""
    import torch
    from webdataset import WebDataset

    shards = sorted(str(path) for path in (root / "webdataset/train").glob("*.tar"))
    dataset = WebDataset(shards, shardshuffle=100, empty_check=False).shuffle(1000).repeat().to_tuple("jpg", "cls")
    samples = dataset.map_tuple(cropped, int).batched(BATCH, collation_fn=torch.utils.data.default_collate)
    return iter(torch.utils.data.DataLoader(samples, batch_size=None, num_workers=WORKERS))


def litdata(root: Path) -> Batches:
    """LitData's streaming dataset."""
    from litdata import StreamingDataLoader, StreamingDataset

    class Cropped(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return cropped(sample["image"]), sample["label"]

    while True:
        yield from StreamingDataLoader(
            Cropped(str(root / "litdata/train"), shuffle=True), batch_size=BATCH, num_workers=WORKERS
        )


def dali(root: Path) -> Batches:
    """DALI's CPU pipeline."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=WORKERS, device_id=None, prefetch_queue_depth=2)
    def pipeline() -> Any:
        data, label = fn.readers.file(file_root=str(root / "photos/train"), random_shuffle=True)
        options = {"random_area": [0.08, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3], "output_type": types.RGB}
        images = fn.decoders.image_random_crop(data, device="cpu", **options)
        images = fn.resize(images, resize_x=SIZE, resize_y=SIZE)
        return fn.flip(images, horizontal=fn.random.coin_flip()), label

    made = pipeline()
    made.build()
    while True:
        yield made.run()


def cropped(data: bytes) -> Any:
    """Decode with torchvision and crop with its transforms v2."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms import v2

    global _crop  # noqa: PLW0603
    if _crop is None:
        _crop = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])
    return _crop(decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB))


_crop: Any = None


def repeated(dataset: Any) -> Batches:
    """Epoch after epoch of torch's DataLoader, whose workers stay."""
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
    while True:
        yield from loader


CANDIDATES: dict[str, Callable[[Path], Batches]] = {
    "ours": ours, "imagefolder": imagefolder, "torchvision": torchvision, "webdataset": webdataset,
    "litdata": litdata, "dali": dali, "no_readahead": no_readahead,
}  # fmt: skip
TITLES = {
    "imagefolder": "ImageFolder + Pillow DataLoader", "torchvision": "torchvision.io + v2 DataLoader",
    "webdataset": "webdataset", "litdata": "LitData", "dali": "DALI (CPU)", "no_readahead": "ours, readahead 0",
}  # fmt: skip
CASES = {
    "loader": ["ours", "imagefolder", "torchvision", "webdataset", "litdata", "dali"],
    "loader, 10 ms more per open and read": ["ours", "no_readahead", "torchvision"],
}


def prepare() -> Path:
    """Create the photos and each candidate's format of them, once."""
    root = CACHE / "bench-loader"
    if (root / ".complete").exists():
        return root
    folder = photos.make_folder(root / "photos", PHOTOS, photos.AVERAGE)
    archive = photos.make_zip(root / "photos.zip", folder, deflated=False)
    peers.SHARD_BYTES = 30_000_000  # more files than workers
    peers.with_webdataset(archive, root / "webdataset")
    peers.with_litdata(archive, root / "litdata")
    from trainers.prepare.build import build
    from trainers.prepare.settings import parse

    source = {"kind": "path", "path": str(archive)}
    build(parse({"source": source, "out": str(root / "prepared"), "layout": "imagefolder", "workers": 2}))
    (root / ".complete").touch()
    return root


def computed(process: int) -> float:
    """Seconds that a process, its threads and its children have computed."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # the last two: of children that have ended
    lists = (path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children"))
    return own + sum(computed(int(child)) for text in lists for child in text.split())


def measure(name: str, root: Path, seconds: float) -> tuple[float, float]:
    """Pictures per second, and per CPU second, after a warm-up long enough to use up prefetched batches."""
    import warnings

    warnings.simplefilter("ignore")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    batches = CANDIDATES[name](root)
    begin = time.perf_counter()
    warm = 0
    while warm < 12 or time.perf_counter() - begin < seconds / 4:
        next(batches)
        warm += 1
    count, begin, spent = 0, time.perf_counter(), computed(os.getpid())
    while time.perf_counter() - begin < seconds:
        next(batches)
        count += BATCH
    return count / (time.perf_counter() - begin), count / (computed(os.getpid()) - spent)


def slow_reading(root: Path) -> Path:
    """Compile slowread.c."""
    library = root / "slowread.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, HERE / "slowread.c", "-ldl"], check=True)
    return library


def side_by_side(case: str, options: argparse.Namespace, environment: dict[str, str]) -> list[dict[str, Any]]:
    """Measure a case's candidates in turn, as often as asked for; a row for each peer."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES[case]}
    for run in range(options.runs):
        for name, rates in found.items():
            command = [sys.executable, __file__, str(options.out), "--one", name, "--seconds", str(options.seconds)]
            done = subprocess.run(
                command, env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False
            )
            line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
            if line is None:
                sys.exit(f"{name} failed: {done.stdout[-2000:]}{done.stderr[-4000:]}")
            wall, processor = map(float, line.split()[1:])
            rates.append((wall, processor))
        told = ", ".join(f"{name} {rates[-1][0]:.0f} ({rates[-1][1]:.0f})" for name, rates in found.items())
        print(f"{case}: run {run + 1}: {told}", flush=True)
    names = {0: case} if environment else {0: case, 1: f"{case}, per processor second"}
    return [row for which, name in names.items() for row in rows(name, found, which)]


def rows(name: str, found: dict[str, list[tuple[float, float]]], which: int) -> list[dict[str, Any]]:
    """A row for each peer: the first or the second number of each run, in the median."""
    middle = {candidate: statistics.median(run[which] for run in runs) for candidate, runs in found.items()}
    return [
        {"name": name, "ours": round(middle["ours"], 1), "peer": round(value, 1), "peer_name": TITLES[peer],
         "unit": "img/s", "ratio": round(middle["ours"] / value, 3), "runs": len(found[peer])}
        for peer, value in middle.items() if peer != "ours"
    ]  # fmt: skip


def main() -> None:
    """Measure all candidates and write the rows."""
    parser = argparse.ArgumentParser(description="Measure the loader against its peers.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--one", choices=list(CANDIDATES), help="measure only this, and print its pictures per second")
    options = parser.parse_args()
    root = prepare()
    if options.one:
        print("RESULT", *measure(options.one, root, options.seconds), flush=True)
        os._exit(0)  # some leave workers behind, which the exit would wait for
    slow = {"LD_PRELOAD": str(slow_reading(root)), "SLOWREAD_BELOW": str(root), "SLOWREAD_MS": "10"}
    found = [side_by_side(case, options, environment) for case, environment in zip(CASES, ({}, slow), strict=True)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps([row for case in found for row in case], indent=1) + "\n")


if __name__ == "__main__":
    main()
