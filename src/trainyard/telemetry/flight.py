"""PyTorch's flight recorder: what each rank's last collectives were, kept in memory and written when a run hangs.

`torchfrtrace RUN/flight/nccl` names the collective in which ranks differ. The recorder is a ring in each process
(https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html); NCCL's and gloo's are apart.
"""

import os
import pickle
from pathlib import Path
from typing import Any

ENTRIES = 2000  # collectives that are remembered, a few hundred bytes each; torchtitan's default is 20,000
# PyTorch 2.9 renamed it, and warns of the old name
NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FUNCTIONS = {"nccl": "_dump_nccl_trace", "gloo": "_dump_fr_trace"}


def switch_on(torch_version: str) -> None:
    """Have processes that are started from here record, unless the environment says how."""
    if not any(name in os.environ for name in NAMES):
        major, minor = (int(part) for part in torch_version.split(".")[:2])
        os.environ[NAMES[(major, minor) < (2, 9)]] = str(ENTRIES)


def records() -> dict[str, bytes]:
    """Return what was recorded in this process, by backend, as torch pickles it; nothing where nothing was."""
    from torch._C import _distributed_c10d as c10d

    found: dict[str, bytes] = {}
    for backend, name in FUNCTIONS.items():
        dump: Any = getattr(c10d, name, None)
        if dump is not None and pickle.loads(content := dump()).get("entries"):
            found[backend] = content
    return found


def write(directory: Path, rank: int) -> None:
    """Write what was recorded to `flight/BACKEND/rank_R`, the names that torchfrtrace expects; raises OSError."""
    for backend, content in records().items():
        folder = directory / "flight" / backend
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rank_{rank}").write_bytes(content)
