"""Explains a hang from the heartbeats of all ranks: those that did not arrive, and where the others wait for them."""

import dis
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from trainyard.telemetry.beats import Heartbeat

# Innermost Python calls of a process that waits for others: torch's collectives and backward, Horovod, our strategies
WAITING = ("/torch/distributed/", "/torch/autograd/graph.py", "/horovod/", "/trainyard/parallel/")
# Methods in which a process waits for its GPU, which waits for the others': the collective was left to it long before
FOR_THE_GPU = (".cpu", ".item", ".tolist", ".synchronize")
DEEPEST = 40  # calls of a stack in a heartbeat, which must fit into a datagram


@dataclass(frozen=True)
class Missing:
    """A rank that did not arrive, and the evidence."""

    rank: int
    reason: str
    beat: Heartbeat

    def __str__(self) -> str:
        where = f" on {self.beat['host']}, pid {self.beat['pid']}" if self.beat else ""
        return f"rank {self.rank}{where}: {self.reason}"


def find_missing(beats: dict[int, Heartbeat], silent: list[int], cut: Sequence[int] = ()) -> list[Missing]:
    """Find the ranks that others wait for: silent, cut off, at storage, outside any collective, or behind.

    `beats` holds each rank's heartbeat; of those in `cut` the file alone shows life. Empty if all ranks are in the same
    place.
    """
    if silent:
        return [Missing(rank, "no sign of life: stopped, cut off or gone", beats[rank]) for rank in silent]
    if cut:
        return [
            Missing(rank, "alive by its file, but it no longer answers over the network", beats[rank]) for rank in cut
        ]
    living = {rank: beat for rank, beat in beats.items() if beat and not beat.get("done")}
    if stuck := {rank: beat["storage"] for rank, beat in living.items() if beat.get("storage")}:
        return [Missing(rank, f"alive, but its storage hangs: {what}", living[rank]) for rank, what in stuck.items()]
    outside = [rank for rank, beat in living.items() if beat.get("stack") and not in_collective(beat["stack"])]
    if 0 < len(outside) < len(living):
        return [Missing(rank, f"alive, but not at the others' collective: {_place(living[rank])}", living[rank])
                for rank in outside]  # fmt: skip
    furthest = max((beat["beats"] for beat in living.values()), default=0)
    late = [rank for rank, beat in living.items() if beat["beats"] < furthest]
    return [Missing(rank, f"alive, but behind the others: {_place(living[rank])}", living[rank]) for rank in late]


def in_collective(stack: list[str]) -> bool:
    """Whether a stack, innermost call last, ends where a process waits for others, or for its GPU, which may."""
    return any(place in line for line in stack[-3:] for place in WAITING) or (
        bool(stack) and stack[-1].endswith(FOR_THE_GPU)
    )


def hang_message(rank: int, what: str, step: int, waited: float, missing: list[Missing]) -> str:
    """One paragraph for people."""
    begun = f"rank {rank} has made no progress for {waited:.0f} s in {what} at step {step}"
    remedy = "The stacks are in hang.json and logs/; set comm.hang_seconds to more if this much time is needed"
    if not missing:
        return f"{begun}; all ranks are in the same place, so the network or the storage hangs. {remedy}"
    if any(one.beat.get("storage") for one in missing):
        remedy = "See the claim's server and the node's mount. " + remedy
    return f"{begun}; did not arrive: {'; '.join(map(str, missing))}. {remedy}"


def stack_of(thread: int | None) -> list[str]:
    """Get the stack of a thread, innermost call last, a line per call; the last one ends in the method that it calls.

    No source file is read: it may lie on the storage that hangs.
    """
    frame = sys._current_frames().get(thread or 0)
    if frame is None:
        return []
    calls = traceback.StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False)
    lines = [f"{call.filename}:{call.lineno} {call.name}" for call in reversed(calls)]
    return [*lines[-DEEPEST:-1], f"{lines[-1]} {calling(frame)}".rstrip()]


def calling(frame: FrameType) -> str:
    """Return the method that a frame calls now, as `.name`; empty if it calls none.

    It is the last one that was looked up on what begins where the call begins in the source.
    """
    steps = list(dis.get_instructions(frame.f_code))
    now = next((step for step in steps if step.offset == frame.f_lasti), None)
    if now is None or now.positions is None:
        return ""
    names = [
        step.argval for step in steps
        if step.offset < now.offset and step.opname in ("LOAD_METHOD", "LOAD_ATTR") and step.positions is not None
        and (step.positions.lineno, step.positions.col_offset) == (now.positions.lineno, now.positions.col_offset)
    ]  # fmt: skip
    return f".{names[-1]}" if names else ""


def _place(beat: Heartbeat) -> str:
    at = f" at {beat['stack'][-1]}" if beat.get("stack") else ""
    return f"in {beat['what']}, step {beat['step']}{at}"
