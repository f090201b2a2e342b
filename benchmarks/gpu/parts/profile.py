"""Where a step's time goes: the kernels that take longest, and for how long the GPU has nothing to do."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.autograd import DeviceType

from benchmarks.gpu.part import Part, main
from benchmarks.gpu.throughput import job_of, ours

STEPS, SHOWN = 10, 8


def work(part: Part) -> None:
    """Profile steps of the engine on generated pictures."""
    kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if part.gpu else [])]
    profile = torch.profiler.profile(activities=kinds)
    job = job_of(part)
    job = replace(job, steps=STEPS) if part.gpu else job
    with part.guarded("profile"):
        found = ours(job, None, False, begun=profile.start, ended=profile.stop, strict=False)
        seconds = job.batch * job.steps / found.rate
        device = DeviceType.CUDA if part.gpu else DeviceType.CPU
        events: list[Any] = [
            event for event in profile.events() if event.device_type == device and not annotation(event)
        ]
        busy = covered((event.time_range.start, event.time_range.end) for event in events) / 1e6
        text = (
            f"{1e3 * seconds / job.steps:.1f} ms a step under the profiler, of which a kernel runs {busy / seconds:.1%}"
        )
        part.add("kernels and gaps", "ok", text, busy=busy / seconds)
        for name, share, count in longest(profile.key_averages(), part.gpu):
            part.add(name[:70], "ok", f"{share:.1%} of the kernels' time, {count / job.steps:.0f} a step")


def annotation(event: Any) -> bool:
    """Whether an event is no kernel but a span that torch has named, such as an optimizer's step."""
    return bool(getattr(event, "is_user_annotation", False))


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def longest(averages: Any, gpu: bool) -> list[tuple[str, float, int]]:
    """Name, share of the time, and count of the kernels that take longest."""
    key = "self_device_time_total" if gpu else "self_cpu_time_total"
    rows = [row for row in averages if not gpu or (row.device_type == DeviceType.CUDA and not annotation(row))]
    whole = sum(getattr(row, key) for row in rows) or 1.0
    rows.sort(key=lambda row: -getattr(row, key))
    return [(row.key, getattr(row, key) / whole, row.count) for row in rows[:SHOWN]]


if __name__ == "__main__":
    main(work)
