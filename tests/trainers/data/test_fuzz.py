"""Broken JPEGs through the decoder built with AddressSanitizer and UndefinedBehaviorSanitizer, in another process."""

import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.trainers.data import test_decode

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "trainers" / "native"
CHECKS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fuzz") / "fuzz"
    command = ["gcc", "-std=gnu11", "-ffp-contract=off", *CHECKS, str(HERE / "fuzz_jpeg.c")]
    command += [str(NATIVE / "scan.c"), str(NATIVE / "rewrite.c"), "-o", str(out), "-ljpeg"]
    subprocess.check_call(command)
    return out


def fuzz(program: Path, folder: Path, seconds: int, seed: int) -> list[int]:
    for number, data in enumerate(test_decode.KINDS.values()):
        (folder / f"{number}.jpg").write_bytes(data)
    options = "abort_on_error=0:detect_leaks=1:allocator_may_return_null=1:max_allocation_size_mb=3000"
    done = subprocess.run(
        [program, str(seconds), str(seed), *sorted(folder.glob("*.jpg"))],
        env=os.environ | {"ASAN_OPTIONS": options}, capture_output=True, text=True, timeout=seconds + 120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr[-6000:]}"
    return [int(word) for word in done.stdout.split() if word.isdigit()]


def test_broken_jpegs_do_no_harm(program: Path, tmp_path: Path) -> None:
    inputs, sized, decoded, rewritten = fuzz(program, tmp_path, 6, seed=1)
    assert inputs > 300
    assert rewritten > 10
    assert inputs > sized > decoded > inputs // 20  # some of each: broken headers, broken pictures, harmless damage


@pytest.mark.soak
def test_broken_jpegs_do_no_harm_for_minutes(program: Path, tmp_path: Path) -> None:
    for _ in range(5):
        fuzz(program, tmp_path, 60, random.randrange(2**31))
