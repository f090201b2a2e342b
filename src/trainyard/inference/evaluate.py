"""The command `trainyard evaluate`: how good a model is on any images whose classes are known."""

import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainyard import __version__
from trainyard.core.exits import Exit, UserError
from trainyard.core.storage import storage
from trainyard.inference import classes, command
from trainyard.inference.command import Done
from trainyard.inference.evaluation_page import MOST_IMAGES, render
from trainyard.inference.forward import list_failures
from trainyard.inference.measures import Measured, measure, worst
from trainyard.models.described import Description
from trainyard.telemetry.metrics import FEW


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate as the arguments say."""
    begun = time.monotonic()
    options = command.parser(
        "trainyard evaluate",
        "Measure a model on images: top-1, top-5, per class, calibration, confusion, worst images. Each image is "
        "measured once; the numbers do not depend on the number of processes.",
        "evaluation",
    ).parse_args(argv)
    remarks: list[str] = []

    def label(images: Any, trained: Any) -> Any:
        labels, remark = classes.match_labels(images, trained.found)
        remarks.extend(filter(None, [remark]))
        return labels

    strategy, done = command.go(options, "evaluate", 5, label)
    if failures := done.outcome.failures:
        lines = "\n".join(list_failures(failures, done.images.name))
        raise UserError(
            f"{len(failures)} of {done.images.count} images cannot be decoded, so accuracies would be over others "
            f"than you named; repair or remove them:\n{lines}"
        )
    if strategy.is_rank0:
        assert done.labels is not None
        measured = measure(done.outcome, done.labels, len(done.trained.found.names))
        write(options.out, done, measured, remarks, time.monotonic() - begun)
        for remark in remarks:
            print(f"evaluate: {remark}")
        top5 = f"top5 {measured.top5:.2f} %, " if len(done.trained.found.names) > FEW else ""
        print(
            f"top1 {measured.top1:.2f} %, {top5}loss {measured.loss:.4f}, calibration error "
            f"{100 * measured.ece:.2f} % over {measured.samples:,} images: {options.out / 'evaluation.html'}"
        )
    strategy.barrier()
    strategy.close()
    return Exit.DONE


def write(out: Path, done: Done, measured: Measured, remarks: Sequence[str], seconds: float) -> None:
    """Write result.json, confusion.npz and evaluation.html."""
    try:
        storage.make_folder(out)
        result = as_json(done, measured, remarks, seconds)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, confusion=measured.confusion, classes=np.array(done.trained.found.names, dtype=str))
        storage.write_file(out / "confusion.npz", buffer.getvalue())
        storage.write_file(out / "evaluation.html", render(done, measured, result).encode())
        storage.write_json(out / "result.json", result)
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror}; choose another folder") from error


def as_json(done: Done, measured: Measured, remarks: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return what result.json holds; accuracies in percent, `ece` as a fraction."""
    found, outcome, images = done.trained.found, done.outcome, done.images
    assert done.labels is not None
    return {
        "samples": measured.samples,
        "correct1": measured.correct1,
        "correct5": measured.correct5,
        "top1": measured.top1,
        "top5": measured.top5,
        "loss": measured.loss,
        "ece": measured.ece,
        "calibration": [vars(one) for one in measured.bins],
        "classes": per_class(found, measured),
        "worst": [
            {
                "name": images.name(sample),
                "class": found.names[int(done.labels[sample])],
                "guess": found.names[int(outcome.guesses[sample, 0])],
                "probability": float(outcome.chances[sample, 0]),
                "loss": float(outcome.losses[sample]),
            }
            for sample in worst(outcome, done.labels, MOST_IMAGES)
        ],
        "model": {"name": found.model, "from": done.trained.origin},
        "data": images.where,
        "pictures": {"size": found.size, "resize": found.resize, "interpolation": found.interpolation},
        "precision": done.precision,
        "remarks": list(remarks),
        "version": __version__,
        "seconds": round(seconds, 2),
    }


def per_class(found: Description, measured: Measured) -> list[dict[str, Any]]:
    """Return samples, precision and recall (percent, None without any) of each class of the model."""
    return [
        {
            "name": name,
            "samples": int(measured.confusion[index].sum()),
            "correct": int(measured.confusion[index, index]),
            "recall": measured.recall(index),
            "precision": measured.precision(index),
        }
        for index, name in enumerate(found.names)
    ]
