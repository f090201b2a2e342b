"""The share of its time that a run spends on steps that are kept (ETTR), from what interruptions and checkpoints cost.

    ETTR = (failure x interval / (interval + stall) - interval / 2) / (failure + away)

ETTR is the effective training time ratio of Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning
Research Clusters", arXiv:2410.21680: useful time over all time since the run had its nodes. A cycle is the time to a
failure, of which steps have the part between checkpoints, and then the time until the next step. On average half an
interval of steps is made again (Young, "A first order approximation to the optimum checkpoint interval",
Communications of the ACM 17(9), 1974). All of it is in seconds:

- failure: mean time from a start to a failure;
- interval: work between two checkpoints;
- stall: for how long training waits for a checkpoint;
- away: from a failure to the next step: to notice it, to place and start the pods, to connect and to load.

It holds for failures that are independent of each other, and far apart beside an interval. A failure during a restart
and a wait for nodes are not in it.
"""

import math

# Kokolis et al. (above): measured for 1,024 GPUs, and expected by them for 16,384
PUBLISHED = ((1024, 7.9 * 3600), (16_384, 1.8 * 3600))
GPU_SECONDS = PUBLISHED[0][0] * PUBLISHED[0][1]


def time_between_failures(gpus: int) -> float:
    """Return the published mean seconds between failures of a run on so many GPUs.

    Below the first published size in proportion to the GPUs, beyond the last one too; between them by the power of the
    number of GPUs that meets both.
    """
    (few, often), (many, most_often) = PUBLISHED
    if gpus <= few:
        return often * few / gpus
    if gpus >= many:
        return most_often * many / gpus
    power = math.log(most_often / often) / math.log(many / few)
    return float(often * (gpus / few) ** power)


def useful_share(failure: float, interval: float, stall: float, away: float) -> float:
    """Return the share of time, 0 to 1, in steps that are kept; 0 where failures come faster than checkpoints."""
    kept = failure * interval / (interval + stall) - interval / 2
    return max(0.0, kept / (failure + away))
