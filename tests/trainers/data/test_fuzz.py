"""Broken JPEGs and any augmentation through the library built with AddressSanitizer and UndefinedBehaviorSanitizer."""

import os
import random
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from tests.trainers.data import test_decode

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "trainers" / "native"
CHECKS = [
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-g",
    "-O1",
]


def compiled(folder: Path, source: str, *others: str) -> Path:
    """A program of tests that includes one of the library's sources, linked with the `others`."""
    out = folder / "fuzz"
    command = ["gcc", "-std=gnu11", "-ffp-contract=off", *CHECKS, str(HERE / source)]
    subprocess.check_call([*command, *(str(NATIVE / other) for other in others), "-o", str(out), "-ljpeg"])
    return out


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("fuzz"), "fuzz_jpeg.c", "resize.c", "rewrite.c", "scan.c", "huffman.c")


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("fuzz"), "fuzz_augment.c", "jpeg.c", "resize.c", "scan.c", "huffman.c")


class Counts(NamedTuple):
    inputs: int
    resized: int
    headers: int
    large: int
    decoded: int
    endless: int
    rewritten: int


def fuzz(program: Path, folder: Path, seed: int, inputs: int = 0, seconds: int = 0) -> Counts:
    flat = Image.new("RGB", (3000, 2000), (90, 120, 30))
    large = [test_decode.encoded(flat, quality=40, progressive=progressive) for progressive in (False, True)]
    for number, data in enumerate([*test_decode.KINDS.values(), *large]):
        (folder / f"{number}.jpg").write_bytes(data)
    options = "abort_on_error=0:detect_leaks=1:allocator_may_return_null=1:max_allocation_size_mb=3000"
    done = subprocess.run(
        [program, str(inputs), str(seconds), str(seed), str(len(large)), *sorted(folder.glob("*.jpg"))],
        env=os.environ | {"ASAN_OPTIONS": options}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr[-6000:]}"
    print(f"seed {seed}: {done.stdout}")
    return Counts(
        *map(int, re.findall(r"(\d+)(?= inputs| areas| headers| of them| pictures| with| rewritten)", done.stdout))
    )


def test_broken_jpegs_do_no_harm(program: Path, tmp_path: Path) -> None:
    found = fuzz(program, tmp_path, seed=1, inputs=2000)
    # some of each: broken headers, broken pictures, harmless damage, claims
    assert found.inputs == 2000
    assert found.resized > 200
    assert found.inputs > found.headers > found.decoded > 100
    assert found.rewritten > 10
    assert min(found.large, found.endless) > 20


def fuzz_changes(program: Path, seed: int, inputs: int = 0, seconds: int = 0) -> list[int]:
    done = subprocess.run(
        [program, str(inputs), str(seconds), str(seed)], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr[-6000:]}"
    print(f"seed {seed}: {done.stdout}")
    return [int(number) for number in re.findall(r"\d+", done.stdout)]


def test_any_changes_stay_in_the_picture_and_are_the_same_without_vectors(changing: Path) -> None:
    inputs, taken, refused, made, *each = fuzz_changes(changing, seed=1, inputs=3000)
    assert inputs == taken + refused == 3000
    assert refused > 150
    assert made > 100
    assert len(each) == 13
    assert min(each) > 100


@pytest.mark.soak
def test_any_changes_do_no_harm_for_minutes(changing: Path) -> None:
    for _ in range(5):
        fuzz_changes(changing, random.randrange(2**31), seconds=60)


@pytest.mark.soak
def test_broken_jpegs_do_no_harm_for_minutes(program: Path, tmp_path: Path) -> None:
    for _ in range(10):
        fuzz(program, tmp_path, random.randrange(2**31), seconds=60)
