"""Measures the loader against its peers: real photos of ImageNet's average size to 224 pixels, on two cores.

python benchmarks/cpu/loader.py OUT.json [--runs 5] [--seconds 8]      (after `hack/bootstrap photos bench`)

Each does RandomResizedCrop(224) and a flip and gives batches of 64 uint8 pictures; the files are in the page cache.

ours         prepared shards of seekable pictures, threads, decoding of the area alone (src/trainyard/data/loader.py)
untouched    the same, of pictures that kept their bytes (`seekable: false`)
imagefolder  torchvision's ImageFolder (Pillow) and transforms, torch's DataLoader
torchvision  files, torchvision.io.decode_jpeg and transforms v2, torch's DataLoader
webdataset   webdataset's shards, decoded and cropped as the line above
litdata      LitData's chunks and StreamingDataLoader, decoded and cropped as the line above
dali         NVIDIA DALI's pipeline on the CPU: reader, random-crop decoder, resize, flip
spdl         SPDL's pipeline of threads: FFmpeg decodes, crops, resizes and flips
resized      as torchvision, of pictures made smaller beforehand, 256 pixels the shorter side: not the same pixels

Then the same of smaller files, ours and torchvision's with two policies of augmentation, and ours, ours without
readahead, and torchvision with 10 ms added to each open and each read (slowread.c).

In every run all are measured, one after the other, each in its own process on the same two cores: two workers,
a warm-up, then batches for some seconds. Medians over the runs; ratio = ours / peer. The rows per processor second
divide by the time that all threads and workers computed, which other programs on the machine hardly change.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
import peers  # noqa: E402
import photos  # noqa: E402

CACHE = Path(os.environ.get("TRAINYARD_CACHE", Path.home() / ".cache" / "trainyard"))
PHOTOS, BATCH, SIZE, WORKERS = 2080, 64, 224, 2
Batches = Iterator[Any]


def ours(root: Path, readahead: int = 1, prepared: str = "prepared", **augment: Any) -> Batches:
    """Batches of the trainers' own loader, in the order that training would take."""
    from ours import batches, open_loader

    return batches(open_loader(root / prepared, BATCH, augment, workers=WORKERS, readahead=readahead), BATCH)


def imagefolder(root: Path) -> Batches:
    """Pillow and torchvision's first transforms, as in PyTorch's ImageNet example."""
    from torchvision import datasets, transforms

    steps = [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    return repeated(datasets.ImageFolder(str(root / "photos/train"), transforms.Compose(steps)))


def torchvision(root: Path, folder: str = "photos/train", policy: str = "") -> Batches:
    """Torchvision's own decoder and its tensor transforms."""
    from torchvision import datasets
    from torchvision.transforms import v2

    policies = {"trivial": v2.TrivialAugmentWide(), "rand": v2.RandAugment(2, 6)}
    change = policies.get(policy, v2.Identity())

    def read(path: str) -> Any:
        return change(cropped(Path(path).read_bytes()))

    return repeated(datasets.ImageFolder(str(root / folder), loader=read))


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


def spdl(root: Path) -> Batches:
    """SPDL's pipeline: each thread has FFmpeg decode and change a picture; batches are put together at the end."""
    import spdl.io
    import torch
    from spdl.pipeline import PipelineBuilder
    from torchvision import datasets
    from torchvision.transforms import RandomResizedCrop

    samples = datasets.ImageFolder(str(root / "photos/train")).samples

    def shuffled() -> Iterator[tuple[str, int]]:
        while True:
            yield from random.sample(samples, len(samples))

    def decode(sample: tuple[str, int]) -> Any:
        packets = spdl.io.demux_image(sample[0])
        picture = torch.empty(3, packets.height, packets.width, device="meta")
        top, left, height, width = RandomResizedCrop.get_params(picture, [0.08, 1.0], [3 / 4, 4 / 3])
        steps = [f"crop={width}:{height}:{left}:{top}", f"scale={SIZE}:{SIZE}:flags=bilinear"]
        steps += ["hflip"] * (random.random() < 0.5) + ["format=pix_fmts=rgb24"]
        return spdl.io.decode_packets(packets, filter_desc=",".join(steps)), sample[1]

    def together(found: list[Any]) -> Any:
        pictures = spdl.io.to_numpy(spdl.io.convert_frames([frames for frames, _ in found]))
        return torch.from_numpy(pictures), torch.tensor([label for _, label in found])

    made = PipelineBuilder().add_source(shuffled()).pipe(decode, concurrency=WORKERS).aggregate(BATCH)
    pipeline = made.pipe(together).add_sink(2).build(num_threads=WORKERS)
    with pipeline.auto_stop():
        yield from pipeline.get_iterator()


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


A3 = {"policy": "rand_increasing", "policy_ops": 2, "policy_magnitude": 6}  # as the recipe resnet50-a3
CANDIDATES: dict[str, Callable[[Path], Batches]] = {
    "ours": ours, "untouched": partial(ours, prepared="untouched"), "no_readahead": partial(ours, readahead=0),
    "ours_trivial": partial(ours, policy="trivial"), "ours_a3": partial(ours, **A3),
    "imagefolder": imagefolder, "torchvision": torchvision, "webdataset": webdataset, "litdata": litdata, "dali": dali,
    "spdl": spdl, "resized": partial(torchvision, folder="resized/train"),
    "torchvision_trivial": partial(torchvision, policy="trivial"),
    "torchvision_rand": partial(torchvision, policy="rand"),
}  # fmt: skip
TITLES = {
    "untouched": "ours, seekable: false", "no_readahead": "ours, readahead 0", "ours": "ours, no policy",
    "imagefolder": "ImageFolder + Pillow DataLoader", "torchvision": "torchvision.io + v2 DataLoader",
    "webdataset": "webdataset", "litdata": "LitData", "dali": "DALI (CPU)", "spdl": "SPDL",
    "resized": "torchvision.io, pictures resized beforehand",
    "torchvision_trivial": "torchvision.io + TrivialAugmentWide", "torchvision_rand": "torchvision.io + RandAugment",
}  # fmt: skip


class Case(NamedTuple):
    """What is measured beside what: the first of the candidates is compared with each of the others."""

    candidates: list[str]
    quality: int = photos.AVERAGE[1]  # of the photos' JPEGs
    slow: bool = False


PEERS = ["imagefolder", "torchvision", "webdataset", "litdata", "dali", "spdl", "resized"]
CASES = {
    "loader": Case(["ours", "untouched", *PEERS]),
    "loader, smaller files": Case(["ours", "untouched", *PEERS], quality=96),
    "loader, policy: trivial": Case(["ours_trivial", "ours", "torchvision_trivial"]),
    "loader, policy of A3": Case(["ours_a3", "ours", "torchvision_rand"]),
    "loader, 10 ms more per open and read": Case(["ours", "no_readahead", "torchvision"], slow=True),
}


def prepare(quality: int) -> Path:
    """Create photos of this quality and each candidate's format of them, once."""
    root = CACHE / f"bench-loader-{quality}"
    if (root / ".complete").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    folder = photos.make_folder(root / "photos", PHOTOS, (photos.AVERAGE[0], quality))
    archive = photos.make_zip(root / "photos.zip", folder, deflated=False)
    peers.SHARD_BYTES = 30_000_000  # more files than workers
    peers.with_webdataset(archive, root / "webdataset")
    peers.with_litdata(archive, root / "litdata")
    photos.resize_folder(folder, root / "resized", 256)
    from trainyard.prepare.build import build
    from trainyard.prepare.settings import parse

    source = {"kind": "path", "path": str(archive)}
    for name, seekable in (("prepared", True), ("untouched", False)):
        settings = {"source": source, "out": str(root / name), "layout": "imagefolder", "workers": 2}
        build(parse({**settings, "seekable": seekable}))
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


def slow_reading(root: Path) -> dict[str, str]:
    """Compile slowread.c; return the environment in which it slows reads below a folder."""
    library = root / "slowread.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, HERE / "slowread.c", "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "SLOWREAD_BELOW": str(root), "SLOWREAD_MS": "10"}


def side_by_side(name: str, case: Case, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure a case's candidates in turn, as often as asked for; a row for each peer."""
    environment = slow_reading(prepare(case.quality)) if case.slow else {}
    found: dict[str, list[tuple[float, float]]] = {candidate: [] for candidate in case.candidates}
    for run in range(options.runs):
        for candidate, rates in found.items():
            command = [sys.executable, __file__, str(options.out), "--one", candidate]
            command += ["--seconds", str(options.seconds), "--quality", str(case.quality)]
            done = subprocess.run(
                command, env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False
            )
            line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
            if line is None:
                sys.exit(f"{candidate} failed: {done.stdout[-2000:]}{done.stderr[-4000:]}")
            wall, processor = map(float, line.split()[1:])
            rates.append((wall, processor))
        told = ", ".join(f"{one} {rates[-1][0]:.0f} ({rates[-1][1]:.0f})" for one, rates in found.items())
        print(f"{name}: run {run + 1}: {told}", flush=True)
    names = {0: name} if case.slow else {0: name, 1: f"{name}, per processor second"}
    return [row for which, title in names.items() for row in rows(title, found, which)]


def rows(name: str, found: dict[str, list[tuple[float, float]]], which: int) -> list[dict[str, Any]]:
    """Return a row for each peer of the first candidate: the first or the second number of each run, in the median."""
    middle = {candidate: statistics.median(run[which] for run in runs) for candidate, runs in found.items()}
    first, *others = middle
    return [
        {"name": name, "ours": round(middle[first], 1), "peer": round(middle[peer], 1), "peer_name": TITLES[peer],
         "unit": "img/s", "ratio": round(middle[first] / middle[peer], 3), "runs": len(found[peer])}
        for peer in others
    ]  # fmt: skip


def main() -> None:
    """Measure all candidates and write the rows."""
    parser = argparse.ArgumentParser(description="Measure the loader against its peers.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--case", choices=list(CASES), action="append", help="measure only these")
    parser.add_argument("--one", choices=list(CANDIDATES), help="measure only this, and print its pictures per second")
    parser.add_argument("--quality", type=int, default=photos.AVERAGE[1], help="of the photos that --one loads")
    options = parser.parse_args()
    if options.one:
        print("RESULT", *measure(options.one, prepare(options.quality), options.seconds), flush=True)
        os._exit(0)  # some leave workers behind, which the exit would wait for
    chosen = {name: case for name, case in CASES.items() if name in (options.case or CASES)}
    for case in chosen.values():
        prepare(case.quality)
    found = [row for name, case in chosen.items() for row in side_by_side(name, case, options)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
