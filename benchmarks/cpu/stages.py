"""Where the loader's processor time goes, stage by stage, as `perf` samples it: us a picture.

Usage: benchmarks/cpu/stages.py FOLDER [SECONDS]    FOLDER: a prepared dataset, such as that of benchmarks/cpu/loader.py
Needs Debian's linux-perf and leave to use it (root, or kernel.perf_event_paranoid <= 1).
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

WARM = 12.0  # seconds: imports and the first batches are no part of it
# The first pattern that matches `library symbol` names the stage
STAGES = {
    "CRC-32": r"crc32|by_multiplying|by_definition",
    "Huffman codes": r"scan_|lanes?_|_block|_entry|huffman|_segments|decode_mcu|memchr|jpeg_make_d_derived|next_mcu",
    "inverse DCT": r"idct",
    "colour, upsampling": r"ycc|upsample|merged|process_data|h2v",
    "resize": r"blend_|resize_|make_axis|spread_weights",
    "other decoding": r"^\S*jpeg-\S*\.so",
    "reading files": r"_copy_to_iter|copy_user|filemap|pread|vfs_|ext4|overlay",
    "copy, mirror": r"direct_copy|hflip|memmove|memcpy|flip",
    "numpy's draws": r"_multiarray_umath|bit_generator|_philox|_generator",
    "torch": r"^libtorch|^libc10|^_C\.",
    "Python": r"^libpython|^python|_ctypes",
    "kernel": r"kernel|\[k\]",
}


def batches(folder: Path, seconds: float) -> None:
    """Load pictures for so long, and print how many a second and what one took of a processor."""
    import ours

    source = ours.batches(ours.open_loader(folder, 64, {}, workers=2), 64)
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM:
        next(source)
    count, spent, begin = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        count += len(next(source).labels)
    print("RESULT", count / (time.perf_counter() - begin), (time.process_time() - spent) / count * 1e6, flush=True)
    os._exit(0)


def shares(report: str) -> Counter[str]:
    """Share of each stage, from lines of `perf report`: percent, library, [.] or [k], symbol."""
    found: Counter[str] = Counter()
    for line in report.splitlines():
        if not (fields := re.match(r"\s*([\d.]+)%\s+(\S+)\s+(\[.\].*)", line)):
            continue
        what = f"{fields[2]} {fields[3]}"
        stage = next((name for name, pattern in STAGES.items() if re.search(pattern, what)), "the rest")
        found[stage] += float(fields[1]) / 100
    return found


def main() -> None:
    """Sample the loader and print a table."""
    parser = argparse.ArgumentParser(description="Show where the loader's processor time goes.")
    parser.add_argument("folder", type=Path, help="a prepared dataset")
    parser.add_argument("seconds", type=float, nargs="?", default=20.0)
    parser.add_argument("--load", action="store_true", help="only load")
    options = parser.parse_args()
    if options.load:
        batches(options.folder, options.seconds)
    if not shutil.which("perf"):
        sys.exit("needs perf: Debian's package is linux-perf")
    with tempfile.TemporaryDirectory() as folder:
        record = ["perf", "record", "-q", "-D", str(int(WARM * 1000) + 6000), "-o", f"{folder}/data", "--"]
        load = [sys.executable, __file__, str(options.folder), str(options.seconds), "--load"]
        done = subprocess.run([*record, *load], capture_output=True, text=True, check=False)
        line = re.search(r"RESULT (\S+) (\S+)", done.stdout)
        if not line:
            sys.exit(f"perf or the loader failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        report = ["perf", "report", "-i", f"{folder}/data", "--stdio", "--no-children", "-s", "dso,sym", "-g", "none"]
        found = shares(subprocess.run(report, capture_output=True, text=True, check=True).stdout)
    rate, spent = float(line[1]), float(line[2])
    print(f"{rate:.0f} pictures a second, {spent:.0f} us of a processor each\n")
    print("| stage | us | share |\n| --- | ---: | ---: |")
    for stage in (*STAGES, "the rest"):
        print(f"| {stage} | {spent * found[stage]:.0f} | {100 * found[stage]:.1f} % |")


if __name__ == "__main__":
    main()
