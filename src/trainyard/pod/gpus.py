"""Checks each GPU of this pod before training: that it computes, and that its memory keeps what is written to it."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainyard.core.exits import Exit, ExitError, UserError, cause_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

KERNEL = 256  # rows of the product by which a GPU is tried
SHARE = 0.9  # of the free memory that is tested: what else uses the GPU needs some
CHUNK = 256 << 20  # bytes that are allocated at once
FACTOR = 2654435761 - (1 << 32)  # spreads consecutive numbers over all 32 bits (Knuth's multiplicative hash)
OFFSET = 0x85EBCA6B  # odd: no two chunks begin alike
REMEDY = "see `nvidia-smi -q` and Xid lines of `dmesg` on the node; cordon it if the GPU keeps failing"


def check(wanted: int, memory_seconds: float) -> None:
    """Check that this pod can use as many GPUs as it has processes, that each computes, and its memory.

    The memory of each GPU is tested for at most so many seconds, 0: not at all. Raises UserError and ExitError.
    """
    import torch

    found = torch.cuda.device_count()
    if found < wanted:
        raise UserError(
            f"{found} GPUs can be used here instead of {wanted}: check the pod's GPU limit, the device plugin and the "
            "driver (`nvidia-smi` on the node)"
        )
    for index in range(wanted):
        device = torch.device("cuda", index)
        try_device(device)
        if memory_seconds:
            free, total = torch.cuda.mem_get_info(device)
            shared = why_not_tested(free, total, torch.cuda.memory_reserved(device), os.environ)
            text = shared or try_memory(device, int(SHARE * free), memory_seconds)
            print(f"preflight: {device}: {text}", flush=True)
            torch.cuda.empty_cache()
    print(f"preflight: GPUs: {found}, each has computed", flush=True)


def why_not_tested(free: int, total: int, own: int, environ: Mapping[str, str]) -> str:
    """Why the memory of a GPU is not tested, in words: the test would take what a neighbour on it needs.

    Time slicing does not show while the neighbours rest: there it is for the user to switch the test off.
    """
    from trainyard.parallel.memory import others_hold  # brings the settings: not needed without GPUs

    if any(name.startswith("CUDA_MPS_") for name in environ):
        return "memory: not tested, since the GPU is shared (MPS)"
    others = others_hold(free, total, own)
    return f"memory: not tested, since {others}" if others else ""


def try_device(device: "torch.device") -> None:
    """Run a small kernel on a device and compare what comes back; raises ExitError, and UserError for a wrong image.

    A product of whole numbers below 2^11 is exact in fp32 and in TF32, so any other result is a fault.
    """
    import torch

    try:
        left = torch.arange(KERNEL**2, dtype=torch.float32, device=device).reshape(KERNEL, KERNEL) % 4
        sums = (left @ torch.ones_like(left)).sum(dim=1).cpu()
        right = (torch.arange(KERNEL**2, dtype=torch.float32).reshape(KERNEL, KERNEL) % 4).sum(dim=1) * KERNEL
    except Exception as error:
        raise _failure(device, "cannot compute", error) from error
    if not torch.equal(sums, right):
        raise ExitError(f"{device} on {os.uname().nodename} computes wrong numbers; {REMEDY}", Exit.DEVICE)


def try_memory(device: "torch.device", size: int, seconds: float, chunk: int = CHUNK) -> str:
    """Write `size` bytes of a device's memory and compare them, then their complement; raises ExitError.

    Stops after so many seconds; returns what was tested, in words.
    """
    begin = time.monotonic()
    try:
        chunks = allocate(device, size, chunk)
        if not chunks:
            return "no memory is free to be tested"
        passes = 0
        for inverted in (False, True):
            written = write(chunks, inverted, begin + seconds)
            if wrong := count_wrong(chunks[:written], inverted):
                raise ExitError(
                    f"the memory of {device} on {os.uname().nodename} does not keep what is written to it: {wrong:,} "
                    f"of {sum(map(len, chunks[:written])):,} words are wrong; {REMEDY}", Exit.DEVICE
                )  # fmt: skip
            passes += written
            if time.monotonic() - begin > seconds:
                break
    except ExitError:
        raise
    except Exception as error:
        raise _failure(device, "fails in a test of its memory", error) from error
    tested = sum(4 * len(part) for part in chunks)
    share = passes / (2 * len(chunks))
    partly = "" if share == 1 else f", {share:.0%} of the test: more seconds would test the rest"
    return f"memory: {tested / (1 << 30):.1f} GiB written and compared in {time.monotonic() - begin:.1f} s{partly}"


def allocate(device: "torch.device", size: int, chunk: int) -> "list[Tensor]":
    """Up to `size` bytes in chunks of 32-bit words; fewer where another process takes the memory meanwhile."""
    import torch

    found: list[Tensor] = []
    try:
        while (len(found) + 1) * chunk <= size:
            found.append(torch.empty(chunk // 4, dtype=torch.int32, device=device))
    except torch.OutOfMemoryError:
        del found[-2:]  # comparing needs room
    return found


def write(chunks: "Sequence[Tensor]", inverted: bool, until: float) -> int:
    """Write each word's pattern (fill) to all chunks, or to as many as can be written by `until`; how many."""
    import torch

    for number, chunk in enumerate(chunks):
        fill(chunk, number, inverted)
        if chunk.is_cuda:
            torch.cuda.synchronize(chunk.device)  # the clock is the host's
        if time.monotonic() > until:
            return number + 1
    return len(chunks)


def count_wrong(chunks: "Sequence[Tensor]", inverted: bool) -> int:
    """How many words are not what was written."""
    import torch

    expected = torch.empty_like(chunks[0])
    wrong = torch.zeros((), dtype=torch.int64, device=expected.device)
    for number, chunk in enumerate(chunks):
        fill(expected, number, inverted)
        wrong += chunk.ne(expected).sum()
    return int(wrong)


def fill(chunk: "Tensor", number: int, inverted: bool) -> None:
    """Fill a chunk of words with its pattern: a number from the place of each word and of the chunk, or its complement.

    So a word that lands at another address is found, and each bit is once 0 and once 1.
    """
    import torch

    torch.arange(len(chunk), out=chunk)
    chunk.mul_(FACTOR).add_((number * OFFSET & 0xFFFFFFFF) - (1 << 31))
    if inverted:
        chunk.bitwise_not_()


def _failure(device: "torch.device", what: str, error: Exception) -> UserError | ExitError:
    """Return what an error of a GPU means here."""
    cause, text = cause_of(error), f"{device} on {os.uname().nodename} {what} ({error}); {REMEDY}"
    if cause.code == Exit.CONFIG:
        return UserError(f"{cause.means}: {text}")
    return ExitError(text, Exit.DEVICE)
