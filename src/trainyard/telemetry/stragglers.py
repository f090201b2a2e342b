"""Finds the slowest rank and its cause from each rank's seconds, which are summed together with the losses."""

import os
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
