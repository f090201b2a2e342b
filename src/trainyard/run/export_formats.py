"""A trained model in formats that load without trainyard and the model's own code: `torch.export` and ONNX.

Each file is loaded again and compared with the model before it is written. The model takes normalised images,
float32 (N, 3, size, size), any number of them, and gives logits (N, classes).
"""

import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainyard.core.exits import UserError

FILES = {"torch": "model.pt2", "onnx": "model.onnx"}
NEEDED = {"torch": (), "onnx": ("onnx", "onnxscript")}
Refusal = Callable[[str, str], str]  # from a kind and the reason to what an error says
TRACED, TRIED = 2, (1, 3)  # samples at a time
TOLERANCE = 1e-4  # of the largest output, and absolutely where that is below 1


def refuse_missing(kinds: Sequence[str]) -> None:
    """Raise UserError where a package is not installed that an export needs."""
    for kind in kinds:
        if lacking := packages_missing(kind):
            raise UserError(
                f"publish.export has {kind!r}: {' and '.join(lacking)} is not installed; install it where training "
                f"runs, for example in an image built from ours with `pip install {' '.join(lacking)}`, or remove "
                f"{kind!r}"
            )


def packages_missing(kind: str) -> list[str]:
    """Return the packages that an export needs and that are not installed."""
    return [name for name in NEEDED[kind] if importlib.util.find_spec(name) is None]


def of_a_run(kind: str, reason: str) -> str:
    """Say that an export has failed at the end of a run, and what to do."""
    return (
        f"publish.export has {kind!r}, and {FILES[kind]} was not published: {reason}. The weights are published; "
        f"remove {kind!r} from publish.export, or change the model, and start the run again, which only publishes"
    )


def export_model(kind: str, model: nn.Module, size: int, refusal: Refusal = of_a_run) -> tuple[bytes, float]:
    """Return a file's content and its largest difference from the model's outputs, on images of a size in pixels.

    Raises UserError, in the words of `refusal`, where the model cannot be exported, or gives other outputs then.
    """
    write, load = {"torch": (_to_torch, _from_torch), "onnx": (_to_onnx, _from_onnx)}[kind]
    generator = torch.Generator().manual_seed(1)
    try:
        with _quiet(), torch.no_grad():
            content = write(model, torch.randn(TRACED, 3, size, size, generator=generator))
            run = load(content)
            images = [torch.randn(count, 3, size, size, generator=generator) for count in TRIED]
            pairs = [(model(batch), run(batch)) for batch in images]
    except Exception as error:  # what the exporters raise is not documented
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        raise UserError(refusal(kind, reason)) from error
    difference = max(float((ours - theirs).abs().max()) for ours, theirs in pairs)
    most = TOLERANCE * max(1.0, *(float(ours.abs().max()) for ours, _ in pairs))
    if not difference <= most:
        raise UserError(
            refusal(kind, f"its outputs differ from the model's by {difference:.2g}, {most:.2g} is allowed")
        )
    return content, difference


def _to_torch(model: nn.Module, example: Tensor) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(_program(model, example), buffer)
    return buffer.getvalue()


def _from_torch(content: bytes) -> Callable[[Tensor], Tensor]:
    run: Callable[[Tensor], Tensor] = torch.export.load(io.BytesIO(content)).module()
    return run


def _to_onnx(model: nn.Module, example: Tensor) -> bytes:
    found: Any = torch.onnx.export(
        _program(model, example), (example,), dynamo=True, verbose=False, input_names=["pictures"],
        output_names=["logits"],
    )  # fmt: skip
    content: bytes = found.model_proto.SerializeToString()
    return content


def _from_onnx(content: bytes) -> Callable[[Tensor], Tensor]:
    """ONNX's own reference, which needs no runtime."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    loaded = onnx.load_from_string(content)
    onnx.checker.check_model(loaded)
    session: Any = ReferenceEvaluator(loaded)
    return lambda images: torch.from_numpy(np.asarray(session.run(None, {"pictures": images.numpy()})[0]))


def _program(model: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    any_number: Any = ({0: torch.export.Dim("batch")},)
    return torch.export.export(model, (example,), dynamic_shapes=any_number)


@contextmanager
def _quiet() -> Any:
    """Without the exporters' warnings about their own insides."""
    noisy = logging.getLogger("torch.onnx"), logging.getLogger("onnxscript"), logging.getLogger("onnx_ir")
    levels = [logger.level for logger in noisy]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in noisy:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(noisy, levels, strict=True):
                logger.setLevel(level)
