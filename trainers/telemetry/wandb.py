"""Weights & Biases, from the first process only; a restart continues the same curve."""

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from trainers.config import as_tree
from trainers.settings import Config
from trainers.telemetry.metrics import Event

# W&B refuses run ids with these characters, and longer ones.
REFUSED, LONGEST = re.compile(r"[:;,#?/%'\\\s]"), 64
KEYS = ("loss", "lr", "images_per_second", "top1", "top5", "epoch", "samples")


def find_key() -> str | None:
    """The API key, from the environment or from the mounted secret."""
    if key := os.environ.get("WANDB_API_KEY"):
        return key
    folder = Path(os.environ.get("TRAINYARD_SECRETS", "/etc/trainyard/secrets"))
    with contextlib.suppress(OSError):
        return (folder / "wandb" / "WANDB_API_KEY").read_text().strip() or None
    return None


def run_id(name: str) -> str:
    """The id of a run: its name, as far as W&B takes it, so that a restart continues the same curve."""
    return REFUSED.sub("-", name)[-LONGEST:]


def start(config: Config, name: str) -> Any | None:
    """Start reporting, if it is asked for and can be."""
    key = find_key()
    mode: Any = {"auto": "online" if key else "off"}.get(config.wandb.mode, config.wandb.mode)
    if mode == "off":
        return None
    if key:
        os.environ["WANDB_API_KEY"] = key
    import wandb

    return wandb.init(
        project=config.wandb.project, name=name, id=run_id(name), resume="allow", mode=mode, dir=config.run.dir,
        config=as_tree(config), settings=wandb.Settings(silent=True),
    )  # fmt: skip


def report(run: Any, event: Event, processes: int = 1) -> None:
    """Report the numbers of an event under its kind; the rate also per process, by which world sizes are compared."""
    kind = event["event"]
    if kind in ("train", "validate"):
        numbers = {f"{kind}/{key}": event[key] for key in KEYS if key in event}
        if "images_per_second" in event:
            numbers[f"{kind}/images_per_second_per_process"] = event["images_per_second"] / processes
        run.log(numbers, step=event["step"])
