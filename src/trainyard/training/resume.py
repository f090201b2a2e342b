"""Continues a run where its newest checkpoint left it, on any number of processes."""

import signal
from typing import Any

import torch

from trainyard.run import checkpoint
from trainyard.training.optimizer import by_name
from trainyard.training.trainer import Trainer


def resume(t: Trainer) -> None:
    """Load the checkpoint, if there is one, and begin the record at its step.

    Raises TakenOverError where another job has the run directory, OSError, and StorageError.
    """
    learner, records, progress = t.learner, t.records, t.progress
    if found := records.found:
        with records.directory.fenced():  # a newer job may have pruned it
            state = found.load() if t.strategy.first else {}  # every process gets it through the strategy
        load(t, state, averaged=found.holds("ema"))
        load_scale(learner.scaler, found.meta["scaler"])
        progress.step = progress.saved = found.step
        progress.validated = int(found.meta["validated"])
    records.recorder.begin(progress.step, progress.validated, t.identity)
    signal.signal(signal.SIGTERM, lambda *_: setattr(progress, "stop", True))
    records.clock.begin()


def load_scale(scaler: torch.amp.GradScaler, state: dict[str, Any]) -> None:
    """Load the scale of the loss; a precision that has none left an empty one, and fp16 begins anew then."""
    if state:
        scaler.load_state_dict(state)


def load(t: Trainer, state: checkpoint.State, averaged: bool) -> None:
    """Load a checkpoint's state, which the first process has; `averaged`: it holds an average of the weights."""
    learner = t.learner
    average = state.pop("ema", {})
    if learner.ema and averaged:
        t.strategy.load_weights(learner.plain, average)
        learner.ema.restart()
    if state:
        state["optimizer"] = by_name(state["optimizer"], learner.optimizer, learner.plain)
    t.strategy.load(learner.plain, learner.optimizer, state)
    if learner.ema and not averaged:
        learner.ema.restart()  # from the loaded weights
