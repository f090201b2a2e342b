"""Runs that fail at a named point (faulty.py) and are started again, and the comparison with one that did not."""

import json
from pathlib import Path
from typing import Any

from faulty import CODES
from fleet import Fleet
from published import assert_same_weights

STEPS = 6
SETTINGS: dict[str, Any] = {
    "precision": "fp32", "model.batch_norm": "local", "model.name": "little_models:dropout", "epochs": None,
    "max_steps": STEPS, "checkpoint.every_steps": 2, "validate.batch": 300, "augment.mixup": 0.2, "ema.decay": 0.9,
}  # fmt: skip
ENDLESS = {"run.max_restarts": 1000}


def start(fleet: Fleet, run: Path, fault: str, world: int = 1, **over: Any) -> tuple[list[int], str]:
    """One start of a run that fails as told, or not: exit codes by rank, and output."""
    env = {"FAULT": fault, **over.pop("env", {})}
    return fleet.wait(fleet.start(run, world, "faulty", env, **{**SETTINGS, **over}))


def assert_ends(fleet: Fleet, run: Path, fault: str, codes: list[int], **over: Any) -> str:
    """One such start, whose ranks end with these codes; its output."""
    found, output = start(fleet, run, fault, len(codes), **over)
    assert found == codes, f"{fault}: {found}, not {codes}: {output}"
    return output


def assert_one_fails(fleet: Fleet, run: Path, fault: str, **over: Any) -> None:
    """One such start of two ranks: the one that `fault` names fails as told, the other since its peer is gone."""
    _, action, rank = fault.split()[:3]
    codes = [138, 138]
    codes[int(rank)] = CODES[action]
    assert_ends(fleet, run, fault, codes, **over)


def assert_same(run: Path, undisturbed: Path) -> None:
    """Both have finished with the same weights, bit for bit."""
    assert_same_weights(run, undisturbed)
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    assert (run / "report.html").exists()
