"""Rewrites JPEGs on their way into the shards so that training reads only the part of a file that its crop needs.

Not one pixel changes (trainyard/native/rewrite.c): coefficients and metadata are copied into a baseline JPEG with
Huffman tables of its own and restart markers, which any program reads. What cannot be copied exactly keeps its bytes.
"""

import ctypes
import threading
from contextlib import nullcontext

import numpy as np

from trainyard import native

# Raise it when the written bytes change: a repair with another rewriter would mix the two
VERSION = 1
REWRITTEN = "rewritten"
# In memory are all symbols of an image, 4 bytes each, and of some its coefficients: large ones one at a time
LARGE_PIXELS = 1 << 21
_one_large = threading.Lock()
# Why an image keeps its bytes, by what trainyard_rewrite returns
KEPT = {
    1: "not a JPEG",
    2: "CMYK, 12 bits or arithmetic coding",
    3: "damaged or incomplete",
    4: "no exact copy possible",
    5: "too large",
}


def rewriter() -> str:
    """Name the versions that determine the bytes of a rewritten image; empty where the C library was not built."""
    library = native.library()
    return f"{VERSION} on {library.trainyard_version().decode()}" if library else ""


def rewrite(content: memoryview | bytes, interval: int = 0) -> tuple[memoryview | bytes, str]:
    """Return an image and REWRITTEN, or its own bytes and why; `interval`: MCUs between restart markers, 0 chooses."""
    library = native.library()
    assert library is not None, "rewriter() has looked"
    data = np.frombuffer(content, np.uint8)  # without a copy
    out = np.empty(2 * data.size + 4096, np.uint8)
    room, size = ctypes.c_size_t(out.size), (ctypes.c_int * 3)()
    library.trainyard_size(data.ctypes.data_as(ctypes.c_char_p), data.size, size)
    with _one_large if size[0] * size[1] > LARGE_PIXELS else nullcontext():
        code = library.trainyard_rewrite(data.ctypes.data, data.size, interval, out.ctypes.data, ctypes.byref(room))
    return (content, KEPT[code]) if code else (out[: room.value].tobytes(), REWRITTEN)
