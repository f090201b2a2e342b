"""Waits until a run has published its model: an evaluation may start before the run has ended."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainyard.core.exits import UserError
from trainyard.core.storage import storage
from trainyard.models.weights import FILE as DESCRIPTION
from trainyard.models.weights import SUMS

EVERY = 5.0  # seconds between looks
SAY = 300.0  # seconds between lines about the same thing


def wait_for_model(run: Path, seconds: float, length: Mapping[str, Any] | None, say: Callable[[str], None]) -> None:
    """Wait until a run directory has a published model, of a finished run; with `length`, of a run of that length.

    A finished run may have been given more epochs: its model is then that of the shorter one until it is published
    again. Raises UserError when so many seconds are over.
    """
    end, said, missing = time.monotonic() + seconds, -SAY, ""
    while found := lacks(run, length):
        now = time.monotonic()
        if now >= end:
            raise UserError(
                f"--model {run}: {found}, after {seconds:.0f} s. See what its job waits for or failed on, and start "
                "this again when the run has finished, or wait longer (evaluate.wait)"
            )
        if found != missing or now - said >= SAY:
            say(f"waiting for the model of {run}: {found}; {end - now:.0f} s left")
            missing, said = found, now
        time.sleep(min(EVERY, max(0.0, end - now)))


def lacks(run: Path, length: Mapping[str, Any] | None = None) -> str:
    """Return what a run lacks of a published model; empty if nothing, as for the folder of a model itself."""
    if not storage.perform(run, run.is_dir):
        return "there is no such run yet"
    if storage.perform(run, (run / DESCRIPTION).exists):
        return ""
    if failed := storage.read_json(run / "failed.json"):
        message = str(failed.get("message", "")).partition("\n")[0]
        return f"the run has failed ({message})"
    summary = storage.read_json(run / "summary.json")
    if summary.get("status") != "finished":
        return "the run has not finished"
    if length and summary.get("length") != length:
        return f"the run has ended after {summary.get('steps')} steps and is to be longer"
    published = storage.perform(run, (run / "published" / SUMS).exists)
    return "" if published else "its model is not published yet"
