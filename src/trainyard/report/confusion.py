"""The confusion of classes, from the counts that the last validation left in validation/confusion.npz."""

import html
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Confusion:
    """Counts [truth, guess], (classes, classes), and the classes' names."""

    counts: NDArray[np.int64]
    names: list[str]


@dataclass(frozen=True)
class Worst:
    """A class that is often predicted as others: how often right, and as what it is predicted, most often first."""

    name: str
    samples: int
    right: int
    taken_for: list[tuple[str, int]]


def read_confusion(path: Path) -> Confusion | None:
    """Read the counts of a run directory; None if there are none."""
    try:
        with np.load(path / "validation" / "confusion.npz", allow_pickle=False) as archive:
            counts, names = archive["confusion"].astype(np.int64), [str(name) for name in archive["classes"]]
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error):
        return None
    names += [f"class {index}" for index in range(len(names), len(counts))]
    return Confusion(counts, names)


def worst(found: Confusion, most: int = 10, guesses: int = 3) -> list[Worst]:
    """Return the classes with the smallest share of right guesses; of equal ones, those with more samples first."""
    samples, right = found.counts.sum(axis=1), found.counts.diagonal()
    order = sorted(np.flatnonzero(samples), key=lambda index: (right[index] / samples[index], -samples[index]))
    rows = []
    for index in order[:most]:
        row = found.counts[index].copy()
        row[index] = 0
        others = [int(other) for other in np.argsort(-row, kind="stable")[:guesses] if row[other]]
        taken_for = [(found.names[other], int(row[other])) for other in others]
        rows.append(Worst(found.names[index], int(samples[index]), int(right[index]), taken_for))
    return rows


def matrix(found: Confusion) -> str:
    """All classes against each other, as SVG; for few classes."""
    size, cell, left, top = len(found.names), 22, 92, 6
    shares = found.counts / np.maximum(found.counts.sum(axis=1, keepdims=True), 1)
    parts = []
    for truth, name in enumerate(found.names):
        y = top + truth * cell
        short = name if len(name) <= 15 else name[:14] + "…"
        parts.append(f'<text x="{left - 6}" y="{y + 15}" text-anchor="end">{html.escape(short)}</text>')
        for guess, other in enumerate(found.names):
            tip = f"{name} predicted as {other}: {found.counts[truth, guess]} ({100 * shares[truth, guess]:.1f} %)"
            parts.append(
                f'<rect class="f{3 if truth == guess else 2}" x="{left + guess * cell}" y="{y}" width="{cell - 2}" '
                f'height="{cell - 2}" rx="3" opacity="{0.06 + 0.94 * shares[truth, guess]:.2f}">'
                f"<title>{html.escape(tip)}</title></rect>"
            )
    view = f"0 0 {left + size * cell} {top + size * cell}"
    return f'<svg viewBox="{view}" role="img" aria-label="confusion matrix">{"".join(parts)}</svg>'
