"""JPEGs of ImageNet's size for a machine that has none: smooth random colours under fine noise, about 110 KB each."""

import io
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES, WIDTH, HEIGHT, NOISE, QUALITY = 10, 500, 375, 18, 90


def prepared(root: Path, count: int) -> Path:
    """Return shards of so many training pictures below root; create them if they do not exist."""
    from trainyard.prepare.build import build
    from trainyard.prepare.settings import parse

    folder, shards = root / f"pictures-{count}", root / f"shards-{count}"
    if not (shards / "manifest.json").exists():
        # not forked: a part has torch in this process, and its threads
        with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
            list(pool.map(_draw, [folder] * count, range(count), chunksize=16))
        source = {"kind": "path", "path": str(folder)}
        build(parse({"source": source, "out": str(shards), "layout": "imagefolder"}))
    return shards


def _draw(folder: Path, number: int) -> None:
    """Draw one picture; one in sixteen is for validation."""
    chance = np.random.Generator(np.random.Philox(key=number))
    label = number // 16 % CLASSES
    coarse = Image.fromarray(chance.integers(0, 256, (9 + label, 12, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), dtype=np.int16)
    pixels = (smooth + chance.integers(-NOISE, NOISE + 1, (HEIGHT, WIDTH, 1), dtype=np.int16)).clip(0, 255)
    path = folder / ("val" if number % 16 == 0 else "train") / f"class{label}" / f"{number:06d}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, "JPEG", quality=QUALITY)
    path.write_bytes(buffer.getvalue())
