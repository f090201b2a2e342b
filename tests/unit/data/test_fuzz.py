"""Broken JPEGs, and any changes, areas and bytes, through the library: with sanitizers, under valgrind, and as it is.

AddressSanitizer and UndefinedBehaviorSanitizer see what lies outside of memory, valgrind also what was never written.
"""

import hashlib
import os
import random
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from PIL import Image

from tests import patience
from tests.unit.data import jpegs, test_decode
from trainyard import native
from trainyard.data import decode

pytestmark = pytest.mark.takes(20)
built = test_decode.built
HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "src/trainyard/native"
SOURCES = {  # each program includes one of the library's sources, and is linked with others
    "fuzz_jpeg.c": ("resize.c", "rewrite.c", "symbols.c", "encode.c", "scan.c", "huffman.c", "crc.c"),
    "fuzz_augment.c": ("jpeg.c", "resize.c", "scan.c", "huffman.c"),
}
SANITIZERS = (
    "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer",
)  # fmt: skip
ASAN = {"ASAN_OPTIONS": "abort_on_error=0:detect_leaks=1:allocator_may_return_null=1:max_allocation_size_mb=3000"}
# Of libjpeg's vector code valgrind reports a row's last pixels, which are the same whatever memory held (tested below)
PLAIN_C = {"JSIMD_FORCENONE": "1"}
VALGRIND = ("valgrind", "--quiet", "--vgdb=no", "--error-exitcode=9", "--exit-on-first-error=yes")
MINUTES = 30  # of all long tests together


@cache
def place() -> "tempfile.TemporaryDirectory[str]":
    """Lasts as long as this process."""
    return tempfile.TemporaryDirectory(prefix="fuzz-")


@cache
def compiled(source: str, *flags: str) -> Path:
    """Compile a program, unless this machine has it already; kept by the content of all that it is made of."""
    others = [str(NATIVE / other) for other in SOURCES[source]]
    command = ["gcc", "-std=gnu11", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-g1", "-O1", *flags]
    made_of = [native.sources(), *(path.read_bytes() for path in sorted(HERE.glob("*.[ch]")))]
    made_by = [" ".join([*command, *SOURCES[source]]).encode(), subprocess.check_output(["gcc", "--version"])]
    name = f"{source}-{hashlib.sha256(b''.join(made_of + made_by)).hexdigest()[:16]}.out"
    kept, out = native.cached_path().with_name(name), Path(place().name, name)
    if not kept.is_file():
        subprocess.check_call([*command, str(HERE / source), *others, "-o", str(out), "-ljpeg"])
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            Path(shutil.copy(out, folder)).replace(kept)
    return kept


def run(*command: object, **env: str) -> str:
    done = patience.run([str(word) for word in command], env=os.environ | env)
    assert done.returncode == 0, f"{command[:6]}: {done.stdout}{done.stderr[-6000:]}"
    print(command[:6], done.stdout)
    return done.stdout


class Counts(NamedTuple):
    inputs: int
    resized: int
    sums: int
    headers: int
    large: int
    decoded: int
    by_segments: int
    endless: int
    rewritten: int
    refused: int


def counts(said: str) -> Counts:
    names = "inputs|areas|sums|headers|of them|pictures|also|with|rewritten|refused"
    return Counts(*map(int, re.findall(rf"(\d+)(?= (?:{names}))", said)))


@cache
def corpus(large: bool) -> list[Path]:
    """Small pictures of all samplings, with and without restart markers; with `large`, larger ones behind them."""
    little = [
        ((1, 1), 0, "b"), ((8, 8), 1, "o"), ((9, 9), 0, "s"), ((16, 17), 1, "b"),
        ((33, 64), 3, "e"), ((33, 40), 2, "p"),
    ]  # fmt: skip
    files = [
        jpegs.encoded(*size, sampling, 80, interval, kind=kind)
        for sampling in jpegs.SAMPLINGS for size, interval, kind in little
    ]  # fmt: skip
    files.append(jpegs.too_large_a_coefficient())
    if large:
        flat = Image.new("RGB", (3000, 2000), (90, 120, 30))
        files += test_decode.KINDS.values()
        files += [test_decode.encoded(flat, quality=40, progressive=progressive) for progressive in (False, True)]
    folder = Path(place().name, f"corpus-{large}")
    folder.mkdir()
    for number, data in enumerate(files):
        (folder / f"{number:03}.jpg").write_bytes(data)
    return sorted(folder.iterdir())


def broken_jpegs(inputs: int, seconds: int, seed: int) -> str:
    return run(compiled("fuzz_jpeg.c", *SANITIZERS), inputs, seconds, seed, 2, *corpus(True), **ASAN)


def broken_jpegs_under_valgrind(inputs: int, seconds: int, seed: int) -> str:
    return run(*VALGRIND, compiled("fuzz_jpeg.c"), inputs, seconds, seed, 0, *corpus(False), **PLAIN_C)


def changes(inputs: int, seconds: int, seed: int) -> str:
    return run(compiled("fuzz_augment.c", *SANITIZERS), inputs, seconds, seed, **ASAN)


def changes_under_valgrind(inputs: int, seconds: int, seed: int) -> str:
    return run(*VALGRIND, compiled("fuzz_augment.c"), inputs, seconds, seed, **PLAIN_C)


def test_broken_jpegs_do_no_harm() -> None:
    found = counts(broken_jpegs(2500, 0, seed=1))
    # some of each: broken headers, broken pictures, harmless damage, claims
    assert found.inputs == 2500
    assert found.resized > 200
    assert found.inputs > found.headers > found.decoded > found.by_segments > 100
    assert found.rewritten > 10
    assert min(found.large, found.endless, found.sums) > 20


def test_no_result_is_made_of_memory_that_was_never_written() -> None:
    found = counts(broken_jpegs_under_valgrind(250, 0, seed=1))
    assert min(found.resized, found.decoded, found.by_segments) > 20
    assert min(found.sums, found.rewritten) > 2
    assert "200 inputs" in changes_under_valgrind(200, 0, seed=1)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_results_do_not_depend_on_what_is_in_new_memory_and_are_those_of_pillow(tmp_path: Path) -> None:
    """With libjpeg's vector code. Where segments can be read, Pillow's own libjpeg gives the same whole picture."""
    said = {
        run(
            compiled("fuzz_jpeg.c"), 2000, 0, 2, 0, *corpus(False),
            MALLOC_PERTURB_=byte, GLIBC_TUNABLES="glibc.malloc.tcache_count=0", TAKEN=str(tmp_path),
        )
        for byte in ("1", "200")
    }  # fmt: skip
    assert len(said) == 1
    taken = [path.read_bytes() for path in tmp_path.iterdir()]
    assert len(taken) == counts(said.pop()).by_segments > 150
    for data in taken:
        picture = decode.Encoded(data)
        found = picture.cut((0, 0, *picture.shape[1:]), *picture.shape[1:])
        assert torch.equal(found, decode._with_pillow(data)), data.hex()


def test_any_changes_stay_in_the_picture_and_are_the_same_without_vectors() -> None:
    found = re.findall(r"\d+(?!\w)", changes(3000, 0, seed=1).partition("; digest")[0])
    inputs, taken, refused, made, *each = map(int, found)
    assert inputs == taken + refused == 3000
    assert refused > 150
    assert made > 100
    assert len(each) == 13
    assert min(each) > 100


@pytest.mark.soak
@pytest.mark.parametrize("what", [broken_jpegs, broken_jpegs_under_valgrind, changes, changes_under_valgrind])
def test_nothing_does_harm_for_minutes(what) -> None:
    for _ in range(10):
        what(0, MINUTES * 60 // 40, random.randrange(2**31))
