"""Real photos for benchmarks: crops of Debian's wallpapers, encoded as JPEG of about 110 KB, the size of ImageNet's.

python benchmarks/cpu/photos.py FOLDER [--count 5200]      (after `hack/bootstrap photos`)

The folder is an ImageFolder, train/WALLPAPER/*.jpg and val/WALLPAPER/*.jpg, one picture in 26 in val. The same count
gives the same bytes with the same Pillow; a folder that is complete is kept.
"""

import argparse
import io
import shutil
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

PLACES = ("/usr/share/backgrounds/mate/nature", "/usr/share/wallpapers")
# Drawings with flat colours would give files of a few kilobytes
DRAWINGS = {"Flow", "Honeywave", "SafeLanding", "Volna", "summer_1am", "Grey", "Shell", "PastelHills", "DarkestHour"}
LEAST_BYTES = 200_000
VAL_ONE_OF = 26
LARGE = ((640, 480), 97)  # size, quality
AVERAGE = ((500, 375), 99)  # the size in pixels of ImageNet's average picture


def make_folder(
    root: Path, count: int, form: tuple[tuple[int, int], int] = LARGE, val_one_of: int = VAL_ONE_OF
) -> Path:
    """Create `count` photos below root, one of `val_one_of` for validation, or keep existing ones; return root."""
    done = root / f".complete-{count}"
    if done.exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    papers = wallpapers()
    shares = np.array_split(np.arange(count), len(papers))
    jobs = [
        (root, number, path, share.tolist(), form, val_one_of)
        for number, (path, share) in enumerate(zip(papers, shares, strict=True))
    ]
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(_crops_of, jobs))
    done.touch()
    return root


def make_zip(path: Path, folder: Path, *, deflated: bool) -> Path:
    """Pack an ImageFolder class by class, as published archives are; keep an existing zip."""
    if not path.exists():
        temporary = path.with_suffix(".tmp")
        method = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
        with zipfile.ZipFile(temporary, "w", method) as archive:
            for picture in sorted(folder.glob("*/*/*.jpg")):
                archive.write(picture, f"photos/{picture.relative_to(folder)}")
        temporary.replace(path)
    return path


def resize_folder(source: Path, out: Path, shorter: int) -> None:
    """Copy an ImageFolder with pictures whose shorter side has so many pixels, at quality 90 as in FFCV's examples."""
    from PIL import Image

    for path in sorted(source.glob("*/*/*.jpg")):
        new = out / path.relative_to(source)
        new.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as picture:
            scale = shorter / min(picture.size)
            size = (round(picture.width * scale), round(picture.height * scale))
            picture.resize(size, Image.Resampling.LANCZOS).save(new, quality=90)


def wallpapers() -> list[Path]:
    """Find the installed wallpapers that are worth cropping, one of each name."""
    found = [path for place in PLACES for path in Path(place).rglob("*.jpg") if path.stat().st_size >= LEAST_BYTES]
    good = {_name(path): path for path in sorted(found) if _name(path) not in DRAWINGS}
    if len(good) < 15:
        raise SystemExit("too few wallpapers are installed: run hack/bootstrap photos")
    return [good[name] for name in sorted(good)]


def _name(path: Path) -> str:
    """Name a wallpaper by its package's folder, which has it in several sizes."""
    return path.parts[4] if path.parts[3] == "wallpapers" else path.stem


def _crops_of(job: tuple[Path, int, Path, list[int], tuple[tuple[int, int], int], int]) -> None:
    """Cut one wallpaper's crops at random places and scales."""
    from PIL import Image

    root, number, path, ids, ((long, short), quality), val_one_of = job
    chance = np.random.Generator(np.random.Philox(key=number))
    picture = Image.open(path).convert("RGB")
    for i in ids:
        split = "val" if i % val_one_of == 0 else "train"
        folder = root / split / _name(path)
        folder.mkdir(parents=True, exist_ok=True)
        width = min(int(long * chance.uniform(0.9, 1.6)), picture.width, picture.height * 4 // 3)
        height = width * short // long
        left, top = (int(chance.integers(0, most + 1)) for most in (picture.width - width, picture.height - height))
        crop = picture.resize((long, short), Image.Resampling.LANCZOS, (left, top, left + width, top + height))
        buffer = io.BytesIO()
        crop.save(buffer, "JPEG", quality=quality)
        (folder / f"{_name(path)}_{i:06d}.jpg").write_bytes(buffer.getvalue())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make photos for benchmarks.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=5200)
    options = parser.parse_args()
    made = sorted(make_folder(options.folder, options.count).glob("*/*/*.jpg"))
    print(f"{len(made):,} photos, {sum(p.stat().st_size for p in made) / len(made) / 1e3:.0f} KB on average")
