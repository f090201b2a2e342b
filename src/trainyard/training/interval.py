"""The time between a run's checkpoints: checkpoint.every_seconds = auto.

    interval = sqrt(2 x stall x (time to failure + start))

Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17(9), 1974; Daly,
"A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems
22(3), 2006, adds the time that a restart takes. All of it is in seconds:

- stall: for how long training waits for a checkpoint, measured by rank 0: the median of the last RECENT;
- start: how long this start took until its first step, measured;
- time to failure: GPU_SECONDS / processes, the rate that is published for its size, until the run has a record: as if
  there had been one failure in that time, so (that + seconds that the run has lived) / (1 + interruptions). From KNOWN
  interruptions on the run's own rate holds if it is higher, as on nodes that fail each hour. A start after an orderly
  stop is none: nothing was repeated.

The interval is LEAST to MOST seconds, and at least twice what the last checkpoint took to be written, so that none
waits for the one before. Until a stall has been measured in this start it is LEAST. Only rank 0 computes it; its vote
makes all processes save at the same step.
"""

import math
import statistics
from collections.abc import Sequence

from trainyard.config.useful_time import GPU_SECONDS

LEAST, MOST = 15.0, 300.0
RECENT = 5
KNOWN = 3


def time_to_failure(processes: int, lived: float, interruptions: int) -> float:
    """Return the expected seconds until a run is interrupted, after `lived` seconds and so many interruptions."""
    expected = (GPU_SECONDS / processes + lived) / (1 + interruptions)
    return expected if interruptions < KNOWN else min(expected, lived / interruptions)


def interval(stalls: Sequence[float], start: float, failure: float, written: float) -> float:
    """Return the seconds between checkpoints, of which the last was written in `written` seconds."""
    if not stalls:
        return LEAST
    best = math.sqrt(2 * statistics.median(stalls) * (failure + start))
    return max(min(MOST, max(LEAST, best)), 2 * written)
