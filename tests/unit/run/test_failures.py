"""What errors of a GPU mean for a run: whose memory it was, and which kernel's fault a library reports."""

from collections.abc import Callable

import pytest
import torch
from starting import attempt

from trainyard import config
from trainyard.core.exits import ExitError, UserError
from trainyard.parallel.environment import Place
from trainyard.parallel.memory import GROWING, let_segments_grow, others_hold
from trainyard.run import failures
from trainyard.run.failures import find_assert

GIB = 1 << 30


def raising(error: Exception) -> Callable[[], None]:
    def wait() -> None:
        raise error

    return wait


def test_an_assert_behind_a_librarys_error_is_found() -> None:
    """The library is the first to notice it; a wait for the GPU has CUDA's own answer."""
    asserted = torch.AcceleratorError("CUDA error: device-side assert triggered")
    for text in (
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`",
    ):
        assert find_assert(RuntimeError(text), raising(asserted)) is asserted
    other = RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")
    for found in (torch.AcceleratorError("CUDA error: unspecified launch failure"), AssertionError("no CUDA here")):
        assert find_assert(other, raising(found)) is other
    assert find_assert(other, lambda: None) is other
    assert find_assert(other) is other, "here is no GPU to be waited for"
    bug = ValueError("x")
    assert find_assert(bug, raising(asserted)) is bug, "errors that are not the GPU's do not wait for it"


def test_memory_that_others_hold_is_told_and_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert others_hold(free=60 * GIB, total=80 * GIB, own=18 * GIB) == ""
    assert others_hold(free=1 * GIB, total=80 * GIB, own=75 * GIB) == ""
    said = others_hold(free=1 * GIB, total=80 * GIB, own=39 * GIB)
    assert said == "other processes hold 40.0 of its 80.0 GiB"
    assert others_hold(free=0, total=16 * GIB, own=10 * GIB) == "other processes hold 6.0 of its 16.0 GiB"

    settings = config.build(
        {"data": {"dir": "synthetic"}, "epochs": 1, "batch": {"global": 8}, "run": {"dir": "/none"}}
    )
    started = attempt(settings, Place(), batch=8)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    assert isinstance(failures.meaning(started, error), UserError)
    monkeypatch.setattr(failures, "used_by_others", lambda: f"; {said}")
    retried = failures.meaning(started, error)
    assert isinstance(retried, ExitError)
    assert retried.code == 201
    assert "the GPU's memory is too small (CUDA out of memory. Tried to allocate 2.00 GiB); other processes" in str(
        retried
    )


@pytest.mark.parametrize(
    ("over", "before", "after"),
    [
        ({}, {}, {"PYTORCH_CUDA_ALLOC_CONF": GROWING}),
        ({"model": {"compile": True}}, {}, {"PYTORCH_CUDA_ALLOC_CONF": GROWING}),
        ({"model": {"compile": True, "compile_mode": "reduce-overhead"}}, {}, {}),
        ({"device": "cpu"}, {}, {}),
        ({}, {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}, {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}),
    ],
)
def test_segments_of_memory_grow_unless_told_otherwise(
    over: dict[str, object], before: dict[str, str], after: dict[str, str]
) -> None:
    settings = config.build({"data": {"dir": "synthetic"}, "epochs": 1, "batch": {"global": 8}}, over)
    let_segments_grow(settings.device, settings.model.compile_mode, environ := dict(before))
    assert environ == after
