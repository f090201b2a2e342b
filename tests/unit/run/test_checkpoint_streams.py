"""A checkpoint of a GPU that runs behind its host: copied beside training, it has the values of its step.

The GPU is tests/util/lagging.py: no kernel of CUDA runs here, but the order of copies, forwards and updates is as free
as streams and events leave it.
"""

from pathlib import Path

import pytest
import torch
from lagging import LaggingGpu, take_the_place

from trainyard.run import checkpoint
from trainyard.run.checkpoint_writer import Writer

STEPS = 5


def train(folder: Path, gpu: LaggingGpu, wrong: str = "") -> None:
    """Do steps as the loop does, each with a checkpoint: forward, settle, update, submit."""
    weights, running = (gpu.tensor(torch.zeros(50)) for _ in range(2))
    writer = Writer(folder, keep_last=STEPS)
    for step in range(1, STEPS + 1):
        gpu.do(lambda values: values.add_(1), running)  # BatchNorm's statistics, in the forward
        if wrong != "no settling":
            writer.settle()
        gpu.do(lambda values: values.add_(1), weights)  # the optimizer
        gpu.free.set()  # now the thread that writes may wait for the GPU, and this one, as `submit` does
        writer.wait()
        gpu.free.clear()
        writer.submit(step, {"model": {"weights": weights, "running": running}}, {}, changing=[running])
    gpu.free.set()
    writer.wait()


def found(folder: Path) -> list[list[float]]:
    """Return what the checkpoints hold, step by step; one number of a tensor whose numbers are all the same."""
    states = [checkpoint.at(path).load()["model"] for path in checkpoint.steps(folder)]
    assert all(len(set(state[name].tolist())) == 1 for state in states for name in state)
    return [[float(state["weights"][0]), float(state["running"][0])] for state in states]


EXPECTED = [[float(step), float(step)] for step in range(1, STEPS + 1)]


@pytest.mark.parametrize("seed", range(12))
def test_it_has_the_values_of_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    gpu = LaggingGpu(seed)
    take_the_place(monkeypatch, gpu)
    train(tmp_path, gpu)
    assert found(tmp_path) == EXPECTED


@pytest.mark.parametrize("wrong", ["no settling", "a forward that waits for nothing", "a copy that waits for nothing"])
def test_what_does_not_wait_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    """The GPU here is as good as the faults that it finds."""
    told = []
    for seed in range(12):
        gpu = LaggingGpu(seed)
        with monkeypatch.context() as patch:
            take_the_place(patch, gpu)
            if wrong == "a forward that waits for nothing":
                patch.setattr(gpu.training, "wait_event", lambda event: None)
            elif wrong == "a copy that waits for nothing":
                patch.setattr("lagging.Stream.wait_stream", lambda self, other: None)
            train(tmp_path / str(seed), gpu, wrong)
        told.append(found(tmp_path / str(seed)) != EXPECTED)
    assert any(told)
