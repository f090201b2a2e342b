"""`trainyard prove --check`: which results of `make gpu` count, and what is said of the others."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import check, machine, run
from benchmarks.gpu.part import Part

pytestmark = pytest.mark.takes(10)
ROOT = Path(__file__).parents[2]
ABOUT = {"gpu": "NVIDIA H100 80GB HBM3", "device": "cuda", "driver": "580.1", "versions": {"torch": "2.11.0"}}
Change = Callable[[dict[str, Any]], Any]


def result_of(folder: Path, distance: float = 0.01) -> dict[str, Any]:
    """Return a result as the harness makes it, of two parts; a distance above 0.02 has failed."""
    modes, tools = (Part(folder / f"{name}.json", "cuda", folder, folder) for name in ("modes", "tools"))
    waits = {"train_step": 0}
    bounds = {"distance": (None, 0.02), "waits.train_step": (None, 0)}
    modes.check("tf32", True, "near", bounds=bounds, distance=distance, waits=waits)
    modes.add("bf16", "not here", "this GPU has no bf16")
    tools.check("export", True, "model.pt2")
    parts = [
        {"name": part.out.stem, "state": check.state_of(part.rows), "seconds": 1.0, "rows": part.rows}
        for part in (modes, tools)
    ]
    return run.result_of(ABOUT, ["modes", "tools"], parts)


def judged(folder: Path, result: dict[str, Any], sealed: bool = True) -> tuple[int, str, str]:
    """Return what the command says of a result: exit code, output, errors. `sealed`: with the hash that fits it."""
    path = folder / "result.json"
    path.write_text(json.dumps({**result, "sha256": check.digest(result)} if sealed else result))
    command = [sys.executable, "-m", "trainyard", "prove", "--check", str(path)]
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_result_of_this_checkout_is_right(tmp_path: Path) -> None:
    code, output, errors = judged(tmp_path, result_of(tmp_path), sealed=False)
    assert (code, errors) == (0, "")
    assert "NVIDIA H100 80GB HBM3, driver 580.1, torch 2.11.0" in output
    assert "programs: those of this checkout" in output
    assert "parts: modes ok, tools ok" in output
    assert "rows: 1 not here, 2 ok" in output


def test_what_has_failed_on_the_gpu_is_said(tmp_path: Path) -> None:
    code, output, _ = judged(tmp_path, result_of(tmp_path, 0.03), sealed=False)
    assert code == 1
    assert "FAILED: modes, tf32: near" in output


def test_a_strangers_text_does_not_reach_the_terminal_as_it_is(tmp_path: Path) -> None:
    result = result_of(tmp_path)
    result["machine"]["gpu"] = "H100\x1b[2J"
    result["parts"][1]["name"] = result["asked"][1] = "tools\n  FAILED: no"
    _, output, _ = judged(tmp_path, result)
    assert "\x1b" not in output
    assert "\n  FAILED" not in output


def row(result: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = result["parts"][0]["rows"][0]
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r["machine"].update(device="cpu"), "ran without a GPU"),
        (lambda r: r["machine"].update(gpu=""), "ran without a GPU"),
        (lambda r: r["machine"]["versions"].update(torch=""), "does not say which torch"),
        (lambda r: row(r).update(distance=0.03), "modes, tf32: ok, and not within its bounds: distance"),
        (lambda r: row(r).update(distance=None), "not within its bounds: distance"),
        (lambda r: row(r)["waits"].update(train_step=1), "not within its bounds: waits.train_step"),
        (lambda r: r["parts"][1].update(state="failed"), "part tools is 'failed', and its rows say 'ok'"),
        (lambda r: r["parts"].pop(), "lacks parts that were asked for: it has 1 of 2"),
        (lambda r: r["rows"].update(ok=9), "counts other states than its rows have"),
        (lambda r: r.update(format=0), "is no result of format 1"),
        (lambda r: r.pop("machine"), "lacks what a result has (KeyError: 'machine')"),
        (lambda r: r.update(parts=[1]), "lacks what a result has (TypeError"),
    ],
)  # fmt: skip
def test_what_proves_nothing_is_refused(tmp_path: Path, change: Change, said: str) -> None:
    result = result_of(tmp_path)
    change(result)
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**result, "sha256": check.digest(result)}))
    with pytest.raises(check.WrongError) as caught:
        check.read(path)
    assert said in str(caught.value)


@pytest.mark.parametrize("content", ["", "[1]", "{", "\udcff", "[" * 100_000])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content, errors="surrogateescape")
    with pytest.raises(check.WrongError, match="send the file that `make gpu` writes"):
        check.read(tmp_path / "result.json")
    with pytest.raises(check.WrongError, match="cannot be read"):
        check.read(tmp_path / "none.json")


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    result = result_of(tmp_path)
    row(result)["distance"] = 0.001
    code, output, errors = judged(tmp_path, result, sealed=False)
    assert (code, output) == (2, "")
    assert "was changed after it was written" in errors


def test_numbers_that_json_does_not_have_are_none(tmp_path: Path) -> None:
    found = result_of(tmp_path, float("nan"))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert row(found)["state"] == "failed"


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout.strip()


def test_programs_are_those_of_the_commit(tmp_path: Path) -> None:
    for name in ("src/trainyard/one.py", "benchmarks/gpu/run.py", "benchmarks/gpu/parts/two.py", "src/other.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    source = machine.source(tmp_path)
    assert source["commit"] == git(tmp_path, "rev-parse", "HEAD")
    assert check.origin(source, tmp_path) == "those of this checkout"
    (tmp_path / "benchmarks/gpu/parts/two.py").write_text("changed")
    assert check.origin(source, tmp_path) == f"of commit {source['commit']}"
    assert check.origin(machine.source(tmp_path), ROOT).startswith("unknown, of a changed commit")
    other = {**source, "sha256": "0" * 64}
    assert check.origin(other, tmp_path) == f"unknown: commit {source['commit']} has others"
    assert "which this checkout does not have" in check.origin({**other, "commit": "0" * 40}, tmp_path)
    assert check.origin({**other, "commit": ""}, tmp_path) == "unknown, of no commit"
    assert "does not have" in check.origin({**other, "commit": "--output=/tmp/x"}, tmp_path)


def test_a_run_without_a_gpu_writes_a_file_that_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu.run", "--parts", "tune", "--device", "cpu", "--out", str(tmp_path),
               "--cache", str(tmp_path / "cache")]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=False, capture_output=True)  # also where the part took too long
    with pytest.raises(check.WrongError, match="ran without a GPU"):
        check.read(tmp_path / "result.json")


def test_outside_of_a_checkout_the_way_is_said(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "trainyard", "prove"]
    env = {"PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 2
    assert "clone the repository, and there run `make gpu`" in done.stderr
