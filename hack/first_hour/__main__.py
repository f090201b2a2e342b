"""The first hour of a newcomer, by a stopwatch: `python -m hack.first_hour FOLDER`, of a folder that is not there yet.

It types what README.md, docs/first-model.md and docs/serving.md say, in their own words and order: from `make train` to
a model of one's own images that answers over HTTP. The images are a folder as people have it, with a .webp and a .HEIC
among them and what macOS leaves; the first preparation must name these. It prints a table, and ends with 1 where a step
did not do what its page says. What is not here yet is fetched and compiled, and counts: empty caches are a new machine.
"""

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests import documents, ports
from tests.documents import ROOT

PAGE, TEST = "first-model.md", "tests/test_first_model.py"
WEBP = b"RIFF\x24\x00\x00\x00WEBPVP8 " + bytes(30)
HEIC = b"\x00\x00\x00\x18ftypheic" + bytes(40)
OTHERS = {"scan.webp": WEBP, "IMG_0001.HEIC": HEIC}
SECONDS = 120  # until the server answers


class Step(NamedTuple):
    """A step of the hour: where it stands, what it is, and how long it took."""

    page: str
    what: str
    seconds: float
    cpu: float
    wrong: str  # what was not as the page says; empty where all was


class Expected(NamedTuple):
    """How a step ends, and what it says."""

    code: int = 0
    says: tuple[str, ...] = ()


WELL = Expected()


def spent() -> float:
    """Return the CPU seconds of all programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def type_in(page: str, what: str, text: str, folder: Path, expected: Expected = WELL) -> Step:
    """Run a block in a folder, and compare how it ends and what it says with what is expected."""
    began, before = time.monotonic(), spent()
    done = subprocess.run(["bash", "-euc", text], cwd=folder, capture_output=True, text=True, check=False)
    said, wrong = done.stdout + done.stderr, ""
    if done.returncode != expected.code:
        wrong = f"it ended with {done.returncode}, not {expected.code}: {said[-300:]}"
    elif lacking := [word for word in expected.says if word not in said]:
        wrong = f"it says nothing of {', '.join(lacking)}: {said[-300:]}"
    elif not expected.code and (lines := documents.lacking(documents.shown(page, text), said, names_of(folder))):
        wrong = f"the page shows what it did not print: {lines[0]}"
    return Step(page, what, time.monotonic() - began, spent() - before, wrong)


def names_of(folder: Path) -> tuple[str, ...]:
    """Return the page's classes, in whose place are those of the folder."""
    return ("kept/beech/0901.jpg", "beech") if (folder / "kept").exists() else ()


@contextlib.contextmanager
def served(folder: Path, port: int) -> Iterator[None]:
    """Serve the published model while the block runs."""
    command = [ROOT / ".venv/bin/python", ROOT / "examples/serving/serve.py", "build/trees-first/published"]
    with subprocess.Popen([*map(str, command), "--port", str(port)], cwd=folder) as server:
        try:
            yield
        finally:
            server.send_signal(signal.SIGTERM)


def ask(folder: Path) -> Step:
    """Serve the model, and ask it for one of the images that were kept."""
    began, before, wrong, port = time.monotonic(), spent(), "", ports.free()
    image = next((folder / "kept").rglob("*.png"))
    with served(folder, port):
        while True:
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{port}/predict?top=1", image.read_bytes())
                answer = json.load(urllib.request.urlopen(request))
                break
            except OSError as error:
                if time.monotonic() - began > SECONDS:
                    wrong, answer = f"no answer: {error}", {"top": []}
                    break
                time.sleep(0.2)
    known = sorted(one.name for one in (folder / "kept").iterdir())
    if not wrong and answer["top"][0]["class"] not in known:
        wrong = f"its answer is none of {known}: {answer}"
    return Step("serving.md", "the model answers over HTTP", time.monotonic() - began, spent() - before, wrong)


def make_images(folder: Path) -> None:
    """Write the newcomer's folders: real images of three classes, some of them kept, and what phones and macOS add."""
    from tests.test_first_model import unpack

    unpack("train", range(1000), folder / "pictures")
    unpack("val", range(500), folder / "kept")
    (folder / "pictures/.DS_Store").write_bytes(b"\x00\x00\x00\x01Bud1")
    some = sorted(one for one in (folder / "pictures").iterdir() if one.is_dir())[0]
    for name, content in OTHERS.items():
        (some / name).write_bytes(content)


def take_out_others(folder: Path) -> None:
    """Do what the message asks for: convert them, here by taking them out."""
    for path in (folder / "pictures").rglob("*"):
        if path.name in OTHERS:
            path.unlink()


def walk(folder: Path) -> Iterator[Step]:
    """Do each step, in the pages' order."""
    yield type_in(PAGE, "make train: a first model", documents.text(PAGE, "make train"), ROOT)
    make_images(folder)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    shutil.copytree(ROOT / "build/train", folder / "build/train")
    prepare, *rest = documents.texts(PAGE, TEST)
    endings = (".webp", ".heic")
    yield type_in(PAGE, "prepare: other formats are named", prepare, folder, Expected(2, endings))
    take_out_others(folder)
    yield type_in(PAGE, "prepare the images", prepare, folder)
    for what, text in zip(("train on them", "evaluate and predict", "use it: timm, ONNX"), rest, strict=True):
        yield type_in(PAGE, what, text, folder)
    yield ask(folder)


def table(steps: list[Step]) -> str:
    """Lay out the steps as a table in Markdown, with their sums."""
    rows = [
        (one.page, one.what, f"{one.seconds:.0f} s", f"{one.cpu:.0f} s", one.wrong or "as it says") for one in steps
    ]
    rows.append(("", "all", f"{sum(one.seconds for one in steps):.0f} s", f"{sum(one.cpu for one in steps):.0f} s", ""))
    head = ("page", "what", "time", "CPU time", "did")
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def main() -> int:
    """Walk, and print the table."""
    parser = argparse.ArgumentParser(prog="hack.first_hour", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="a folder to work in, which is not there yet")
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True)
    os.environ.pop("KUBECONFIG", None)
    steps = []
    for step in walk(folder):
        steps.append(step)
        print(f"{step.page}: {step.what}: {step.seconds:.0f} s {step.wrong}", file=sys.stderr, flush=True)
    print(table(steps))
    return int(any(step.wrong for step in steps))


if __name__ == "__main__":
    raise SystemExit(main())
