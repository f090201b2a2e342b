"""The parts of `make gpu` run here too, on tiny sizes: all that a processor can, and what needs a GPU says so.

`make test` runs one of them; the others run before a release.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import patience
from tests.util.forked import Forker

pytestmark = [pytest.mark.takes(10), pytest.mark.ranks(2)]
ROOT = Path(__file__).parents[2]
SMALL = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
GPU_ONLY = {
    "modes": {
        "tf32", "fp16", "fp16, clip_norm", "fp16, mixup and cutmix", "fp16, adamw", "fp16, lamb",
        "attention, empty forwards, fp16", "checkpointing", "bf16, checkpointing",
    },
    "deterministic": set(),
    "groups": {"ddp, fp16 over gloo", "fsdp, fp16 over gloo"},
    "faults": {"memory too small in step 1", "memory too small in step 6", "illegal memory access",
               "device-side assert", "device-side assert, without a group"},
    "kernels": {"average by NCCL, float32", "average by NCCL, bfloat16", "average by NCCL, float16"},
    "tools": {"preflight"},
    "checkpoint": set(),
    "loader": set(),
    "profile": set(),
}  # fmt: skip
NOTHING_HERE = ("compile", "speed_compiled", "tune")  # on a processor these parts say so of all they have
ALWAYS = "deterministic"

Run = Callable[[str], tuple[int, str, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    """Starts parts that need not import torch."""
    forker = Forker({**os.environ, **SMALL})
    yield forker
    forker.close()


@pytest.fixture
def run(forker: Forker, tmp_path: Path) -> Run:
    """Run a part without a GPU, as the program that it is: its exit code, output and rows."""

    def run(name: str) -> tuple[int, str, list[dict[str, Any]]]:
        command = [sys.executable, "-m", f"benchmarks.gpu.parts.{name}", str(tmp_path / "rows.json"), "--device", "cpu"]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = forker.popen(command, cwd=ROOT, env={**os.environ, **SMALL}, text=True, **streams)
        output, _ = patience.communicate(process)
        return process.returncode, output, json.loads((tmp_path / "rows.json").read_text())["rows"]

    return run


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] if name != ALWAYS else []) for name in GPU_ONLY]
)
def test_a_part_runs_on_a_processor(run: Run, tmp_path: Path, name: str) -> None:
    code, output, rows = run(name)
    assert code == 0, output
    assert {row["name"] for row in rows if row["state"] == "needs a GPU"} == GPU_ONLY[name]
    assert {row["state"] for row in rows} <= {"ok", "needs a GPU", "not known"}
    assert any(row["state"] == "ok" for row in rows)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]


@pytest.mark.soak
@pytest.mark.parametrize("name", NOTHING_HERE)
def test_a_part_that_a_processor_cannot_run_says_so(run: Run, name: str) -> None:
    code, output, rows = run(name)
    assert code == 0, output
    assert len(rows) > 1
    assert {row["state"] for row in rows} == {"needs a GPU"}


@pytest.mark.soak
def test_speed_runs_beside_its_peers(run: Run) -> None:
    code, output, found = run("speed")
    assert code == 0, output
    rows = {row["name"]: row for row in found}
    for name in ("ours, generated pictures", "ours, JPEGs", "torchvision's reference step (AMP)", "timm's step"):
        assert rows[name]["rate"] > 0, name
    order = [row["name"] for row in found]
    ratio = "JPEGs beside generated pictures"
    assert rows[ratio]["state"] == "needs a GPU"
    assert order.index(ratio) == order.index("ours, JPEGs") + 1, "recorded as soon as it is known"


def test_the_goals_are_those_of_the_page() -> None:
    from benchmarks.gpu.parts import speed

    lines = (ROOT / "docs" / "gpu.md").read_text().splitlines()
    page = {name: next(line for line in lines if f"| `{name}` |" in line) for name in ("speed", "speed_compiled")}
    least = {(one, other): bound for _, one, other, bound in speed.RATIOS}
    ours = speed.GENERATED
    assert f"less than {least[ours, speed.TORCHVISION]} x torchvision's, {least[ours, speed.TIMM]} x" in page["speed"]
    assert f"JPEGs below {100 * least[speed.JPEGS, ours]:.0f} % of" in page["speed"]
    assert f"but {least[f'{ours}, compiled', f'{speed.TIMM}, compiled']} x timm's" in page["speed_compiled"]
    assert (speed.EXPECTED["H200"], speed.EXPECTED["H100"]) == (0.5, 0.35)
    assert f"less than half of {speed.RECORD:,} img/s on an H200, 35 % on an H100" in page["speed"]


@pytest.mark.parametrize(
    ("mode", "waits", "losses", "state"),
    [
        ("bf16", {}, [2.0, 1.9], "ok"),
        ("bf16", {"evaluate": 4}, [2.0, 1.9], "ok"),
        ("bf16", {"evaluate": 5}, [2.0, 1.9], "failed"),
        ("bf16", {"train_step": 1}, [2.0, 1.9], "failed"),
        ("bf16", {"save": 1}, [2.0, 1.9], "failed"),
        ("bf16", {"flush": 1}, [2.0, 1.9], "failed"),
        ("fp16", {"save": 2}, [2.0, 1.9], "ok"),
        ("fp16, lamb", {"save": 2}, [2.0, 1.9], "ok"),
        ("lamb", {"save": 1}, [2.0, 1.9], "failed"),
        ("bf16", {}, [2.0, 2.2], "failed"),
        ("mixup", {}, [2.0, float("nan")], "failed"),
    ],
)
def test_a_mode_fails_by_its_losses_and_by_waits(
    tmp_path: Path, mode: str, waits: dict[str, int], losses: list[float], state: str
) -> None:
    from benchmarks.gpu import part, training
    from benchmarks.gpu.parts import modes

    seen = training.Seen(losses=losses)
    seen.calls.update(evaluate=1, save=1)
    seen.waits.update(waits)
    here = part.Part(tmp_path / "rows.json", "cuda", tmp_path, tmp_path)
    modes.judge(here, mode, seen, [2.0, 1.9], modes.MODES[mode][1])
    assert here.rows[0]["state"] == state, here.rows


def test_losses_near_zero_are_not_divided_by() -> None:
    """Of a set that is learnt at once, only the first steps tell two runs apart."""
    from benchmarks.gpu.training import COMPARED, apart

    falling = [2.0 * 0.3**step for step in range(50)]
    other = [loss * 1.01 + 1e-4 for loss in falling]
    assert apart(other, falling) == pytest.approx(0.01, abs=0.001)
    assert apart([*falling[:COMPARED], *[1.0] * 40], falling) == 0.0
    assert apart([2.2, *falling[1:]], falling) > 0.05


def test_models_of_the_parts_attend_and_ask_for_too_much() -> None:
    from benchmarks.gpu import models

    outputs = models.attending(10)(torch.randn(2, 3, 32, 32))
    assert outputs.shape == (2, 10)
    failing = models.greedy_at_once(10)
    with pytest.raises(RuntimeError, match="memory"):
        failing(torch.zeros(2, 3, 32, 32))


def test_rows_of_several_threads_are_all_written(tmp_path: Path) -> None:
    """As the faults' are, of which several run at a time."""
    from benchmarks.gpu import part

    here = part.Part(tmp_path / "rows.json", "cpu", tmp_path, tmp_path)
    names = {str(number) for number in range(200)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: here.add(name, "ok", ""), names))
    assert {row["name"] for row in json.loads((tmp_path / "rows.json").read_text())["rows"]} == names


def test_overlapping_kernels_count_once() -> None:
    from benchmarks.gpu.parts import profile

    assert profile.covered([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 1.7)]) == 4.0


def test_a_step_that_fails_for_real_is_what_the_models_promise() -> None:
    """On a processor reading beyond the end is an IndexError; the little model itself trains."""
    from benchmarks.gpu import models

    pictures = torch.zeros(2, 3, 32, 32)
    failing = models.asserting(10)
    for _ in range(5):
        assert failing(pictures).shape == (2, 10)
    with pytest.raises(IndexError):
        failing(pictures)
