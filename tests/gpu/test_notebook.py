"""The notebook for free GPUs: `make gpu` has the commands that it gives, in this order, and its code is Python.

It is not run here: it needs a GPU, and a network for pip.
"""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

from benchmarks.gpu import run

ROOT = Path(__file__).parents[2]
CELLS = [
    "".join(cell["source"])
    for cell in json.loads((ROOT / "examples" / "prove-gpu.ipynb").read_text())["cells"]
    if cell["cell_type"] == "code"
]


def commands() -> list[str]:
    """What the cells give to a shell."""
    return [line.strip()[1:] for cell in CELLS for line in cell.splitlines() if line.strip().startswith("!")]


def test_both_halves_are_run_and_then_judged() -> None:
    asked = []
    for command in (line for line in commands() if line.startswith("make gpu")):
        shown = subprocess.run(
            [*shlex.split(command), "-n", "--no-print-directory"],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},  # of `make test`
            text=True,
            capture_output=True,
            check=True,
        )
        program, *words = shlex.split(shown.stdout)
        assert [program, *words[:2]] == ["python3", "-m", "benchmarks.gpu.run"]
        asked.append(run.parser().parse_args(words[2:]))
    assert [options.parts for options in asked[:2]] == [["first"], ["second"]]
    assert all(options.slowness == 4 for options in asked[:2])
    assert asked[2].check == [options.out / "result.json" for options in asked[:2]]
    assert len(asked) == 3


def test_cells_are_python_and_the_extra_exists() -> None:
    for number, cell in enumerate(CELLS):
        lines = [re.sub(r"^( *)[!%].*", r"\1pass", line) for line in cell.splitlines()]
        compile("\n".join(lines), f"cell {number}", "exec")
    assert any("'.[train]'" in command for command in commands())
    assert "\ntrain = [" in (ROOT / "pyproject.toml").read_text()
