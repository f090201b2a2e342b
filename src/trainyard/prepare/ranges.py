"""The ranges of bytes that are fetched of an archive: samples that lie close together, at once."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# One request fetches neighbours up to LARGEST_REQUEST, and reads through gaps up to LARGEST_GAP rather than ask again
LARGEST_REQUEST = 2 << 20
LARGEST_GAP = 64 << 10


class Request(NamedTuple):
    """Bytes to fetch at once, and the positions in the shard of the samples that lie there."""

    start: int
    stop: int
    samples: list[int]
    # One of its samples is larger than requests otherwise are; such requests are made one at a time
    large: bool


def requests(members: NDArray[Any]) -> Iterator[Request]:
    """Gather samples that lie close together in the archive."""
    order = np.argsort(members["offset"], kind="stable")
    starts = members["offset"][order].tolist()
    stops = (members["offset"] + members["span"])[order].tolist()
    sizes = members["size"][order]
    first = 0
    for i in range(1, len(starts) + 1):
        if i < len(starts) and starts[i] - stops[i - 1] <= LARGEST_GAP and stops[i] - starts[first] <= LARGEST_REQUEST:
            continue
        large = max(stops[i - 1] - starts[first], int(sizes[first:i].max())) > LARGEST_REQUEST
        yield Request(starts[first], stops[i - 1], order[first:i].tolist(), large)
        first = i
