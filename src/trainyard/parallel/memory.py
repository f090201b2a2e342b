"""A GPU's memory: how torch's allocator keeps it, and how much of it other processes hold. Imports no torch."""

from collections.abc import MutableMapping

from trainyard.config.run_plan import WITH_GRAPHS

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
GROWING = "expandable_segments:True"
OWN_CONTEXT = 3 << 30  # bytes outside of torch's memory: CUDA's context, NCCL's buffers, libraries' kernels


def let_segments_grow(device: str, compile_mode: str, environ: MutableMapping[str, str]) -> None:
    """Let the allocator grow its segments in place, unless the environment says how it keeps memory.

    To be called before torch is imported, which reads it once.

    The last batch of an epoch, a validation and the average of the weights need blocks of other sizes than a step:
    kept in segments of fixed sizes, free memory falls to pieces that are too small. Replayed CUDA graphs have memory of
    their own, which torch restores by its segments; those stay as they are.
    """
    if device != "cpu" and compile_mode not in WITH_GRAPHS and not any(map(environ.get, NAMES)):
        environ["PYTORCH_CUDA_ALLOC_CONF"] = GROWING  # the name that torch before 2.9 knows, and later ones too


def others_hold(free: int, total: int, own: int) -> str:
    """Say how many of a GPU's `total` bytes other processes hold; empty if they are few.

    `own` are the bytes that this process's torch has reserved.
    """
    others = total - free - own
    if others < max(OWN_CONTEXT, total // 10):
        return ""
    return f"other processes hold {others / (1 << 30):.1f} of its {total / (1 << 30):.1f} GiB"
