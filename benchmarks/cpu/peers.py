"""Other tools that turn a zip of photos into training data, used as their users would.

python benchmarks/cpu/peers.py unzip|webdataset|litdata ARCHIVE OUT

Each makes train and val, shuffled once, with a label per picture and at most 256 MB per file.
"""

import io
import random
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

SHARD_BYTES = 256_000_000
_archives: dict[str, zipfile.ZipFile] = {}


def pictures(names: list[str]) -> dict[str, list[tuple[str, int]]]:
    """Split names of an ImageFolder into shuffled lists of (name, label) for train and val."""
    found = [name for name in names if name.endswith(".jpg")]
    label = {name: i for i, name in enumerate(sorted({Path(name).parent.name for name in found}))}
    splits = {}
    for split in ("train", "val"):
        splits[split] = [(name, label[Path(name).parent.name]) for name in found if f"/{split}/" in name]
        random.Random(0).shuffle(splits[split])
    return splits


def with_unzip(archive: Path, out: Path) -> None:
    """Unpack everything, then pack the files into tars in a shuffled order."""
    out.mkdir(parents=True)
    subprocess.run(["unzip", "-q", archive, "-d", out / "files"], check=True)
    files = [str(path) for path in (out / "files").rglob("*.jpg")]
    for split, samples in pictures(files).items():
        (out / split).mkdir()
        number = 0
        while samples:
            with tarfile.open(out / split / f"{number:05d}.tar", "w") as tar:
                _fill(tar, samples)
            number += 1


def _fill(tar: tarfile.TarFile, samples: list[tuple[str, int]]) -> None:
    """Move samples from the list into a tar until it is full."""
    while samples and tar.offset < SHARD_BYTES:
        name, label = samples.pop()
        tar.add(name, f"{len(samples):09d}.jpg")
        text = str(label).encode()
        info = tarfile.TarInfo(f"{len(samples):09d}.cls")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))


def with_webdataset(archive: Path, out: Path) -> None:
    """Read members in a shuffled order and write them with webdataset's ShardWriter."""
    import webdataset

    with zipfile.ZipFile(archive) as source:
        for split, samples in pictures(source.namelist()).items():
            (out / split).mkdir(parents=True)
            with webdataset.ShardWriter(str(out / split / "%05d.tar"), maxsize=SHARD_BYTES, verbose=0) as sink:
                for i, (name, label) in enumerate(samples):
                    sink.write({"__key__": f"{i:09d}", "jpg": source.read(name), "cls": str(label)})


def read_member(job: tuple[str, str, int]) -> dict[str, object]:
    """Return one sample, in one of LitData's workers."""
    archive, name, label = job
    if archive not in _archives:
        _archives[archive] = zipfile.ZipFile(archive)
    return {"image": _archives[archive].read(name), "label": label}


def with_litdata(archive: Path, out: Path) -> None:
    """Let LitData's two workers read the members and write its chunks."""
    from litdata import optimize

    with zipfile.ZipFile(archive) as source:
        splits = pictures(source.namelist())
    for split, samples in splits.items():
        jobs = [(str(archive), name, label) for name, label in samples]
        optimize(
            fn=read_member,
            inputs=jobs,
            output_dir=str(out / split),
            chunk_bytes=SHARD_BYTES,
            num_workers=2,
            verbose=False,
        )


if __name__ == "__main__":
    how, archive_name, out_name = sys.argv[1:]
    {"unzip": with_unzip, "webdataset": with_webdataset, "litdata": with_litdata}[how](
        Path(archive_name), Path(out_name)
    )
