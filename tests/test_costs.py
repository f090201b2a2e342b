"""What tests cost is kept, and a file that takes too much of the whole fails `make test` and lint."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import costs, patience

ROOT = costs.ROOT
# What scripts/test runs beside pytest; here they do nothing
STEPS = [
    "bootstrap", "lint", "ct-lint", "ct-install", "tools/build", "programs/build", "images/build", "images/load",
    "cluster/up", "cluster/extra", "registry/build", "versions/build",
]  # fmt: skip
DO_NOTHING = "#!/bin/sh\n"


def cost(processor: float) -> dict[str, float]:
    return {"processor": processor, "seconds": 1.0}


def whole(dear: float, name: str = "tests/test_dear.py") -> dict[str, Any]:
    """A whole run of 100 processor seconds, in which one file takes so many."""
    count = 50
    rest = {f"tests/test_{number}.py": cost((100 - dear) / count) for number in range(count)}
    return {"files": {**rest, name: cost(dear)}, "rings": {ring: {"tests": 1} for ring in costs.RINGS}}


def written(root: Path, known: dict[str, Any]) -> dict[str, Any]:
    """The same, with the files that it names."""
    for name in known["files"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return known


def report(name: str, duration: float, outcome: str = "passed", said: str = "") -> pytest.TestReport:
    return pytest.TestReport(name, (name, 1, ""), {}, outcome, said, "call", duration=duration)  # type: ignore[arg-type]


def test_the_costs_of_whole_files_and_of_rings_are_kept_beside_what_was_known(tmp_path: Path) -> None:
    kept = tmp_path / "build" / "costs.json"
    assert costs.read(kept) == {"files": {}, "rings": {}}
    kept.parent.mkdir()
    before = {name: {"seconds": 9.0, "processor": 2.0} for name in ("a.py", "e.py")}
    kept.write_text(json.dumps({"files": before, "rings": {"first": {"tests": 1, "seconds": 9, "processor": 4}}}))
    account = costs.Costs(kept=kept)
    for one in (
        report("a.py::x", 1.0), report("a.py::y", 0.5), report("b.py::x", 3.0, "failed"),
        report("c.py::x", 0.0, "skipped", costs.LATE), report("d.py::x", 0.25, "skipped", "no root"),
    ):  # fmt: skip
        one.processor = 2 * one.duration  # type: ignore[attr-defined]
        account.pytest_runtest_logreport(one)
    known = account.keep("second")
    assert known == costs.read(kept)
    assert {name: (cost["seconds"], cost["processor"]) for name, cost in known["files"].items()} == {
        "a.py": (1.5, 3.0), "d.py": (0.2, 0.5), "e.py": (9.0, 2.0),
    }  # fmt: skip
    assert known["rings"]["second"] == {"tests": 5, "seconds": 5, "processor": 10}
    shown = costs.table(known)
    assert re.search(r"^second +5 +5 +10$", shown, re.M)
    assert shown.index("a.py") < shown.index("e.py") < shown.index("d.py")


def test_a_file_that_takes_more_than_its_share_of_a_whole_run_is_named(tmp_path: Path) -> None:
    assert costs.verdict(written(tmp_path, whole(2.9)), tmp_path) == (0, "")
    code, said = costs.verdict(written(tmp_path, whole(3.9)), tmp_path)
    assert (code, said) == (
        0, "near the 4% that one file may take: tests/test_dear.py takes 4 of 100 processor seconds: 3.9%",
    )  # fmt: skip
    code, said = costs.verdict(written(tmp_path, whole(4.1)), tmp_path)
    assert code == 1
    assert said.startswith("tests/test_dear.py takes 4 of 100 processor seconds: 4.1%, more than 4%. Share or split")
    assert said.endswith("or name it with a reason in LARGE of tests/costs.py")
    assert len(said.splitlines()) == 1


def test_exceptions_parts_of_a_run_and_files_that_are_gone_are_not_judged(tmp_path: Path) -> None:
    for name, reason in costs.LARGE.items():
        assert (ROOT / name).exists(), f"{name} is no exception any more"
        assert reason
        assert costs.verdict(written(tmp_path, whole(50, name)), tmp_path) == (0, "")
    known = written(tmp_path, whole(50))
    for ring in costs.RINGS:
        part = {**known, "rings": {name: value for name, value in known["rings"].items() if name != ring}}
        assert costs.verdict(part, tmp_path) == (0, "")
    (tmp_path / "tests/test_dear.py").unlink()  # it has been split
    assert costs.verdict(known, tmp_path) == (0, "")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A tree with what of this one scripts/test and lint need to judge costs."""
    for name in (
        "scripts/test", "hack/lint", "hack/lib/beside.sh", "hack/lib/common.sh", "scripts/demo/settings.sh",
        "tests/costs.py",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    for name in STEPS:
        if not (tmp_path / "hack" / name).exists():
            program(tmp_path / "hack" / name, DO_NOTHING)
    (tmp_path / "build").mkdir()
    return tmp_path


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def run(place: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    env = {
        key: value for key, value in os.environ.items() if key != "KUBECONFIG"
    }  # which scripts/test of this run has set
    return patience.run([*command], cwd=place, env={**env, "TRAINYARD_HOLD": "yes", "CI": ""})


def test_a_whole_run_fails_by_a_file_that_takes_too_much(place: Path) -> None:
    """scripts/test itself; each ring that it runs notes itself and what all of its files have cost."""
    program(place / ".venv/bin/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program(
        place / ".venv/bin/pytest",
        """#!/bin/sh
flock build python -c '
import json, os, pathlib
known = json.loads(pathlib.Path("known.json").read_text())
kept = pathlib.Path("build/test-costs.json")
rings = json.loads(kept.read_text())["rings"] if kept.exists() else {}
kept.write_text(json.dumps({"files": known["files"], "rings": rings | {os.environ["TRAINYARD_RING"]: {"tests": 1}}}))'
""",
    )
    program(place / "hack/lint", DO_NOTHING)
    for dear, code in ((3.0, 0), (5.0, 1)):
        (place / "known.json").write_text(json.dumps(written(place, whole(dear))))
        done = run(place, "scripts/test")
        assert done.returncode == code, done.stdout + done.stderr
        assert ("tests/test_dear.py takes 5 of 100 processor seconds: 5.0%, more than 4%" in done.stdout) == bool(code)


def test_lint_judges_the_last_whole_run(place: Path) -> None:
    (place / ".venv").symlink_to(ROOT / ".venv")
    lint = ("hack/lint", "--only", "shares of test files")
    assert run(place, *lint).returncode == 0
    (place / "build/test-costs.json").write_text(json.dumps(written(place, whole(5.0))))
    done = run(place, *lint)
    assert done.returncode == 1
    assert "tests/test_dear.py takes 5 of 100" in done.stdout
    assert done.stderr == "lint failed: shares of test files\n"
