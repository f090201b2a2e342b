"""evaluation.html: what a model gets right and wrong, on one page that needs nothing else."""

import html
from typing import Any

import numpy as np

from trainyard.inference.command import Done
from trainyard.inference.measures import Bin, Measured, worst
from trainyard.report.confusion import Confusion, matrix
from trainyard.report.confusion import worst as worst_classes
from trainyard.report.page import Markup, card, note, page, table, tiles
from trainyard.report.svg import Line, line_chart, number
from trainyard.report.thumbnails import STYLE, figure, shots
from trainyard.telemetry.metrics import FEW

MOST_IMAGES = 24
MOST_DRAWN = 24  # classes of a drawn matrix
MOST_PAIRS = 12


def render(done: Done, measured: Measured, result: dict[str, Any]) -> str:
    """Return the whole page; `result` is what result.json holds."""
    found = done.trained.found
    names = list(found.names)
    confusion = Confusion(measured.confusion, names)
    lead = (
        f"{found.model} of {done.trained.origin} on {done.images.where}: {measured.samples:,} images, each "
        f"measured once, {found.size} x {found.size} pixels, {done.precision}"
    )
    notices = "".join(f'<div class="notice">{html.escape(text)}</div>' for text in result["remarks"])
    body = [
        STYLE,
        f'<h1>Evaluation</h1><p class="lead">{html.escape(lead)}</p>{notices}',
        tiles([
            (f"{measured.top1:.2f} %", f"top-1 accuracy: {measured.correct1:,} images"),
            *([(f"{measured.top5:.2f} %", "top-5 accuracy")] if len(names) > FEW else []),
            (f"{100 * measured.ece:.2f} %", "expected calibration error"),
            (number(measured.loss), "mean loss (cross-entropy)"),
        ]),
        '<div class="cards">',
        _images(done, measured, result),
        mistakes(confusion),
        _calibration(measured.bins),
        _classes(confusion, result),
        "</div>",
    ]  # fmt: skip
    return page("Evaluation", "".join(body))


def _images(done: Done, measured: Measured, result: dict[str, Any]) -> str:
    """Return the wrong images with the highest loss: where labels are wrong, or the model is."""
    assert done.labels is not None
    figures = []
    for sample, row in zip(worst(done.outcome, done.labels, MOST_IMAGES), result["worst"], strict=True):
        said = f"predicted as {row['guess']} ({100 * row['probability']:.0f} %)"
        content = done.images.read(np.array([sample]))[0]
        figures.append(figure(content, row["class"], (said, f"loss {row['loss']:.2f}", row["name"])))
    wrong = measured.samples - measured.correct1
    text = (
        f"{wrong:,} of {measured.samples:,} images are wrong; those with the highest loss: a wrong label shows first."
    )
    return card("Worst images", shots(figures) + note(text), wide=True)


def mistakes(found: Confusion) -> str:
    """Return what is predicted as what: all classes against each other, or of many the most frequent pairs."""
    if len(found.names) <= MOST_DRAWN:
        text = "Rows are the right class, columns the guess; confusion.npz has the counts."
        return card("Confusion", matrix(found) + note(text))
    wrong = found.counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_PAIRS]
    places = [divmod(int(flat), len(found.names)) for flat in order if wrong.flat[flat]]
    totals = found.counts.sum(axis=1)
    rows = [
        (found.names[truth], found.names[guess], int(wrong[truth, guess]),
         f"{100 * wrong[truth, guess] / totals[truth]:.1f} %")
        for truth, guess in places
    ]  # fmt: skip
    return card("Most frequent mistakes", table(("class", "predicted as", "#images", "#of its class"), rows))


def _calibration(bins: list[Bin]) -> str:
    """Accuracy over confidence: a calibrated model is right as often as it says."""
    filled = [one for one in bins if one.samples]
    points = [(100 * one.confidence, 100 * one.accuracy) for one in filled]
    lines = [
        Line("as often right as it says", [(0.0, 0.0), (100.0, 100.0)], kind=7, dashed=True),
        Line("accuracy, %, over the probability of the first guess, %", points, dots=True),
    ]
    rows = [
        (f"{100 * one.low:.0f} to {100 * one.high:.0f} %", f"{one.samples:,}", f"{100 * one.confidence:.1f} %",
         f"{100 * one.accuracy:.1f} %")
        for one in filled
    ]  # fmt: skip
    text = "15 bins of equal width (Guo et al. 2017, arXiv:1706.04599). Below the line it is too sure of itself."
    numbers = table(("probability", "#images", "#mean", "#right"), rows)
    return card(
        "Calibration",
        line_chart(lines, from_zero=True) + note(text) + f"<details><summary>Bins</summary>{numbers}</details>",
    )


def _classes(found: Confusion, result: dict[str, Any]) -> str:
    shown = {one.name: one for one in worst_classes(found, most=len(found.names))}
    rows = []
    for row in sorted(result["classes"], key=lambda one: (one["recall"] is None, one["recall"] or 0.0)):
        taken = shown.get(row["name"])
        others = ", ".join(f"{name} ({count})" for name, count in taken.taken_for) if taken else ""
        rows.append((row["name"], f"{row['samples']:,}", _percent(row["recall"]), _percent(row["precision"]), others))
    head = ("class", "#images", "#recall", "#precision", "most often predicted as")
    text = (
        "Recall: the share of a class's images that is found. Precision: of those predicted as it, the share that is."
    )
    if len(rows) <= MOST_DRAWN:
        return card("Classes", table(head, rows) + note(text), wide=True)
    rest = Markup(f"<details><summary>All {len(rows)} classes</summary>{table(head, rows)}</details>")
    return card("Worst classes", table(head, rows[:MOST_DRAWN]) + rest + note(text), wide=True)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"
