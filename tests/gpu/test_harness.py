"""The harness of `make gpu`, with real parts that end well, fail, crash, or hang with their children; and its page."""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import machine, page, run
from tests import patience

ROOT = Path(__file__).parents[2]
PART = """
import os, subprocess, sys, time
from benchmarks.gpu.part import Part, main

def work(part: Part) -> None:
    part.add("before", "ok", "a | b")
"""
ENDS = {
    "well": "    part.needs_gpu('kernel')",
    "fails": "    part.check('figure', False, 'too low')",
    "raises": "    with part.guarded('block'):\n        raise ValueError('broken')\n    part.add('after', 'ok', '')",
    "crashes": "    os.abort()",
    "hangs": (
        "    child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "    (part.out.parent / 'child').write_text(str(child.pid))\n    time.sleep(1000)"
    ),
    "absent": "    raise SystemExit(5)",
}


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A tree whose benchmarks.gpu.parts are the ones above."""
    folder = tmp_path / "benchmarks" / "gpu" / "parts"
    folder.mkdir(parents=True)
    for path in (tmp_path / "benchmarks", tmp_path / "benchmarks" / "gpu", folder):
        (path / "__init__.py").write_text("__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n")
    for name, end in ENDS.items():
        (folder / f"{name}.py").write_text(f"{PART}{end}\n\nif __name__ == '__main__':\n    main(work)\n")
    return tmp_path


def go(parts: Path, name: str, seconds: float = patience.IDLE, left: float = 1000.0) -> dict[str, Any]:
    """Run one part under the real harness, in a process of its own: it kills whatever is below it."""
    out = parts / "out"
    out.mkdir(exist_ok=True)
    code = (
        "import ctypes, json, os, sys, pathlib; from benchmarks.gpu import run; run.ROOT = pathlib.Path(sys.argv[1]);"
        "ctypes.CDLL(None).prctl(run.PR_SET_CHILD_SUBREAPER, 1);"
        "item = run.Item(sys.argv[2], 'A title', float(sys.argv[3]));"
        "print(json.dumps(run.one(item, 'cuda', pathlib.Path(sys.argv[4]), dict(os.environ), float(sys.argv[5]))))"
    )
    env = {**os.environ, "PYTHONPATH": f"{parts}:{ROOT}"}
    words = [sys.executable, "-c", code, str(parts), name, str(seconds), str(out), str(left)]
    done = subprocess.run(words, cwd=parts, env=env, text=True, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert json.loads((out / f"{name}.json").read_text()) == result
    assert [path for path in out.iterdir() if path.is_dir()] == []
    return result


def test_a_part_ends_well_fails_or_crashes(parts: Path) -> None:
    before = {"name": "before", "state": "ok", "text": "a | b"}
    well = go(parts, "well")
    assert (well["state"], well["rows"]) == ("ok", [before, {"name": "kernel", "state": "ok", "text": ""}][:1])
    assert go(parts, "fails")["state"] == "failed"
    raised = go(parts, "raises")
    assert raised["state"] == "failed"
    assert [row["name"] for row in raised["rows"]] == ["before", "block", "after"]
    assert raised["rows"][1]["text"] == "ValueError: broken"
    assert "ValueError: broken" in "\n".join(raised["output"])
    crashed = go(parts, "crashes")
    assert (crashed["state"], crashed["rows"]) == ("crashed (-6)", [before])
    assert go(parts, "absent")["state"] == "crashed (1)" or go(parts, "absent")["state"] == "crashed (5)"


def test_a_part_that_hangs_is_killed_with_its_children_and_keeps_its_rows(parts: Path) -> None:
    seconds = round(15 * max(2.0, patience.slowness()))  # in which it is to start
    result = go(parts, "hangs", seconds)
    assert result["state"] == f"killed after {seconds} s"
    assert [row["name"] for row in result["rows"]] == ["before"]
    child = int((parts / "out" / "child").read_text())
    assert not Path(f"/proc/{child}").exists()


def test_what_there_is_no_time_for_is_said(parts: Path) -> None:
    assert go(parts, "well", left=5)["state"] == "no time left"


def test_the_limits_fit_into_the_budget() -> None:
    for half in (run.FIRST, run.SECOND):
        assert sum(item.seconds for item in half) + run.LOOK <= run.BUDGET == 540
    assert all(item.seconds <= run.BUDGET for item in run.LONG)
    assert {item.name for item in run.chosen_items(["first", "loader"])} == {*(i.name for i in run.FIRST), "loader"}
    assert run.chosen_items(["all"]) == [*run.FIRST, *run.SECOND]
    with pytest.raises(argparse.ArgumentTypeError, match="sped: no such part"):
        run.named("modes,sped")
    for item in run.ITEMS:
        assert (ROOT / "benchmarks" / "gpu" / "parts" / f"{item.name}.py").is_file()


def test_one_file_has_machine_versions_hashes_and_figures(parts: Path, tmp_path: Path) -> None:
    found = [go(parts, "well"), go(parts, "crashes")]
    about = {"versions": {"torch": "2.11.0"}, "device": "cuda"}
    result = run.result_of(about, ["well", "crashes"], found)
    assert result["machine"]["versions"] == {"torch": "2.11.0"}
    assert result["parts"] == found
    assert result["rows"] == {"ok": 2}
    assert re.fullmatch("[0-9a-f]{64}", result["source"]["sha256"])
    other = machine.source(tmp_path)
    assert other["sha256"] != result["source"]["sha256"]
    assert other["commit"] == ""


def test_the_page_has_every_row(parts: Path) -> None:
    about = {"versions": {"torch": "2.11.0"}, "python": "3.12.3", "cores": 16, "device": "cpu"}
    found = [go(parts, "well"), go(parts, "crashes"), go(parts, "well", left=5)]
    text = page.render(about, found, datetime.date(2026, 1, 2))
    assert text.startswith("2026-01-02: no GPU; 16 cores")
    assert "Figures mean nothing." in text
    assert "| A title | crashed (-6) |" in text
    assert text.count("| before | ok | a \\| b |") == 2
    assert "No results." in text
    assert "Figures mean nothing." not in page.render(about | {"device": "cuda"}, found, datetime.date(2026, 1, 2))


@pytest.mark.parametrize("there", [True, False])
def test_only_what_is_missing_or_older_is_added(tmp_path: Path, there: bool) -> None:
    for name, version in (("pytest", "0.1"), ("pydantic", "999.0"), ("nowhere", "1.0")):
        folder = tmp_path / "wheels" / name
        (folder / f"{name}-{version}.dist-info").mkdir(parents=True)
    if not there:
        (tmp_path / "wheels").rename(tmp_path / "gone")
    env, text = machine.prepared(tmp_path / "wheels", tmp_path / "out")
    assert text == ("carried: nowhere, pydantic" if there else "carried: nothing")
    assert (f"{tmp_path}/wheels/nowhere" in env["PYTHONPATH"].split(":")) is there
    assert f"{tmp_path}/wheels/pytest" not in env["PYTHONPATH"].split(":")


def test_a_torch_that_fails_is_no_machine_without_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libcudart.so is broken')\n")
    command = [sys.executable, "-m", "benchmarks.gpu.run", "--out", str(tmp_path / "out")]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert "does not answer here" in done.stderr
    assert "libcudart.so is broken" in (tmp_path / "out" / "machine.log").read_text()


def test_what_cannot_be_found_is_named(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-S",
        "-m",
        "benchmarks.gpu.run",
        "--out",
        str(tmp_path / "out"),
        "--wheels",
        str(tmp_path),
    ]
    done = subprocess.run(
        command, cwd=ROOT, env={"PATH": os.environ["PATH"]}, text=True, capture_output=True, check=False
    )
    assert done.returncode == 2
    assert "torch, torchvision, pydantic" in done.stderr
    assert "make gpu-wheels" in done.stderr
