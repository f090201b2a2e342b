"""Peak memory has a bound that does not grow with the archive: 300 MB with 8 workers, as the documentation says."""

import subprocess
import sys
import zipfile

import numpy as np
import pytest

from tests.unit.prepare.make_archives import picture

pytestmark = pytest.mark.takes(12)

BOUND_MB = 300
PROGRAM = """
import sys
from trainyard.prepare.command import main
main(sys.argv[1:])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def make(path, pictures, size, method=zipfile.ZIP_STORED):
    """An archive of small JPEGs, each followed by noise that makes it as large as that."""
    noise = np.random.Generator(np.random.Philox(key=1)).bytes(size)
    small = picture(1)
    with zipfile.ZipFile(path, "w", method, compresslevel=0) as archive:
        for i in range(pictures):
            archive.writestr(f"{'val' if i == 0 else 'train'}/class/{i}.jpg", small + i.to_bytes(8, "big") + noise)
    return path


def peak(archive, out, *more):
    """Prepare in a separate process; return its peak resident memory in MB."""
    pairs = [
        "source.kind=path",
        f"source.path={archive}",
        f"out={out}",
        "layout=imagefolder",
        "decode=none",
        "workers=8",
    ]
    line = [sys.executable, "-c", PROGRAM, "build", *(text for pair in (*pairs, *more) for text in ("--set", pair))]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout) * 1024 / 1e6


def test_peak_memory_does_not_grow_with_the_archive(in_memory):
    few = peak(make(in_memory / "few.zip", 200, 110_000), in_memory / "few")
    many = peak(make(in_memory / "many.zip", 1200, 110_000), in_memory / "many")
    assert many < BOUND_MB
    assert many - few < 40


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def test_peak_memory_is_bounded_with_the_largest_pictures(in_memory, method):
    archive = make(in_memory / "large.zip", 4, 60 << 20, method)
    assert peak(archive, in_memory / "large") < BOUND_MB
