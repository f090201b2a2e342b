"""Finds the slowest rank and its cause, and a network that became slow, from each rank's seconds.

They are summed together with the losses.
"""

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainyard.telemetry.clock import PARTS
from trainyard.telemetry.energy import KINDS

NOTABLE = 0.2  # share of the time from which the console mentions it

# A slow network: steps that take so many times as long as calm ones, of which communication is this share of what they
# take longer on every rank, in two lines of metrics in a row that last so many seconds together
SLOW, SHARE, LINES, LASTS = 3.0, 0.8, 2, 5.0
LEAST_CALM, MOST_CALM = 3, 50  # lines of metrics that calm steps are measured by


@dataclass(frozen=True)
class Slowest:
    """The slowest rank, its cause (data, compute, communication), and the share of the time that others wait for it."""

    rank: int
    cause: str
    behind: float

    def as_dict(self) -> dict[str, Any]:
        """For the records."""
        return asdict(self)


class RankTotals(NamedTuple):
    """Of all ranks: summed losses (steps,), seconds by rank and part, bytes by rank, summed joules by kind."""

    losses: Tensor
    seconds: list[list[float]]
    memory: list[float]
    joules: list[float]


def pack(
    losses: Tensor, spent: dict[str, float], held: float, joules: Sequence[float], *, rank: int, world: int
) -> Tensor:
    """Losses (steps,), this rank's joules by kind, and its seconds and bytes in its own place among zeros, to sum."""
    rows = torch.zeros(world, len(PARTS) + 1, dtype=torch.float64)
    rows[rank] = torch.tensor([*(spent[part] for part in PARTS), held], dtype=torch.float64)
    return torch.cat([losses, torch.tensor(joules, dtype=torch.float64), rows.flatten()])


def unpack(total: Tensor, world: int) -> RankTotals:
    """Return what all ranks packed, from the sum."""
    ranks = world * (len(PARTS) + 1)
    losses, joules, rest = torch.split(total, [len(total) - ranks - len(KINDS), len(KINDS), ranks])
    rows: list[list[float]] = rest.view(world, len(PARTS) + 1).tolist()
    return RankTotals(losses, [row[:-1] for row in rows], [row[-1] for row in rows], joules.tolist())


def memory_held(device: torch.device) -> float:
    """Return the most bytes that torch has reserved on this process's GPU; without one, the bytes resident now."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_reserved(device))
    return float(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))


def find(times: Sequence[Sequence[float]], wall: float) -> Slowest | None:
    """Return the rank that works longest before it can meet the others; None for a single one.

    `times` are seconds by rank and part, `wall` the seconds that they were measured over. Waiting for others is no
    work, so communication does not count; it is the cause only where no rank stands out and it takes most of the time.
    """
    if len(times) < 2:
        return None
    work = [data + compute for data, compute, _ in times]
    rank = max(range(len(work)), key=work.__getitem__)
    others = [row for index, row in enumerate(times) if index != rank]
    excess = [times[rank][part] - median(row[part] for row in others) for part in range(2)]
    behind = max(0.0, work[rank] - median(row[0] + row[1] for row in others)) / max(wall, 1e-9)
    if behind >= 0.05:
        cause = excess.index(max(excess))
    else:  # no rank stands out: the part that takes all of them longest
        totals = [sum(row[part] for row in times) for part in range(3)]
        cause = totals.index(max(totals))
    return Slowest(rank, PARTS[cause].removesuffix("_wait"), round(behind, 4))


class Network:
    """Notices a network that became slow: of lines of metrics, from the first of this start on."""

    def __init__(self) -> None:
        self._calm: deque[tuple[float, float]] = deque(maxlen=MOST_CALM)  # seconds of a step, and of it communication
        self._lines, self._lasts = 0, 0.0

    def slower(self, times: Sequence[Sequence[float]], steps: int) -> float:
        """Return how many times as long as calm steps these took, by communication on every rank; 0 where they did not.

        A rank that computes or waits for data longer than before waits less for others, so that it is no network's.
        """
        seconds = max(sum(row) for row in times)
        step, exchange = seconds / steps, min(row[2] for row in times) / steps
        if len(self._calm) >= LEAST_CALM:
            calm, exchanged = (median(column) for column in zip(*self._calm, strict=True))
            if step >= SLOW * calm and exchange - exchanged >= SHARE * (step - calm):
                self._lines, self._lasts = self._lines + 1, self._lasts + seconds
                return round(step / max(calm, 1e-9), 1) if self._lines >= LINES and self._lasts >= LASTS else 0.0
        self._calm.append((step, exchange))
        self._lines, self._lasts = 0, 0.0
        return 0.0
