"""ResNet-50 in bf16: images per second of the engine's whole loop beside torchvision's, timm's and DALI's steps.

Ours is the engine's own loop with everything that belongs to it, on generated pictures and on JPEGs from prepared
shards; torchvision's and timm's steps compute on one batch that lies on the GPU. The device is waited for only before
the first and after the last step that counts; a step of the engine that waits for it fails.
"""

import gc
from collections.abc import Callable

import torch

from benchmarks.gpu import peers, pictures
from benchmarks.gpu.part import Part, main
from benchmarks.gpu.throughput import Found, Job, job_of, ours, step_of

RECORD = 7950  # img/s per H200: MLPerf Training v4.0, ResNet-50 on 8 GPUs
FLOP = 3 * 2 * 4.09e9  # of a picture: torchvision's 4.09 G multiply-adds forward, twice that backward
# Dense bf16 TFLOP/s, NVIDIA's data sheets
PEAK = {"A100": 312.0, "H100": 989.4, "H200": 989.4, "B200": 2250.0}
GENERATED, JPEGS, TORCHVISION, TIMM, DALI = (
    "ours, generated pictures", "ours, JPEGs", "torchvision's reference step (AMP)", "timm's step", "DALI and a step"
)  # fmt: skip


def work(part: Part) -> None:
    """All variants, the eager ones first."""
    job, rates = job_of(part), dict[str, float]()
    shards = pictures.prepared(part.folder, job.pictures)
    drawn = part.folder / f"pictures-{job.pictures}" / "train"
    variants: dict[str, Callable[[], Found]] = {
        GENERATED: lambda: ours(job, None, False),
        TORCHVISION: lambda: step_of(job, peers.torchvision_step(job.model, job.device, job.batch, job.size, False)),
        TIMM: lambda: step_of(job, peers.timm_step(job.model, job.device, job.batch, job.size, False)),
        JPEGS: lambda: ours(job, shards, False),
        DALI: lambda: step_of(job, peers.dali_step(job.model, job.batch, job.size, drawn)),
        f"{GENERATED}, compiled": lambda: ours(job, None, True),
        f"{TIMM}, compiled": lambda: step_of(job, peers.timm_step(job.model, job.device, job.batch, job.size, True)),
    }
    for name, variant in variants.items():
        if (name == DALI or "compiled" in name) and part.needs_gpu(name):
            continue
        with part.guarded(name):
            clear(job)
            try:
                found = variant()
            except ImportError as error:
                part.add(name, "not here", str(error))
                continue
            rates[name] = found.rate
            report(part, job, name, found)
        if name == TIMM:
            compare(part, rates)
    if JPEGS in rates and GENERATED in rates:
        goal(part, "JPEGs beside generated pictures", rates[JPEGS] / rates[GENERATED], 0.95)


def report(part: Part, job: Job, name: str, found: Found) -> None:
    """Add a row: rate, share of the record and of the peak, memory, and where the engine's time went."""
    text = f"{found.rate:,.0f} img/s"
    if part.gpu:
        peak = next((peak for key, peak in PEAK.items() if key in torch.cuda.get_device_name()), 0.0)
        share = f", {found.rate * FLOP / peak / 1e12:.0%} of {peak:,.0f} TFLOP/s" if peak else ""
        text += f" ({found.rate / RECORD:.0%} of {RECORD:,}{share}), {found.memory:.1f} GiB"
    whole = sum(found.split.values())
    shares = [f"{key} {value / whole:.1%}" for key, value in found.split.items() if whole and value / whole > 0.001]
    part.add(name, "ok", text + (f"; {', '.join(shares)}" if shares else ""), rate=found.rate)


def compare(part: Part, rates: dict[str, float]) -> None:
    """Compare with what is promised: rates beside the peers', and on an H200 beside the record."""
    if GENERATED not in rates:
        return
    for other, least in ((TORCHVISION, 1.4), (TIMM, 1.03)):
        if other in rates:
            goal(part, f"ours beside {other}", rates[GENERATED] / rates[other], least)
    if part.gpu and "H200" in torch.cuda.get_device_name():
        goal(part, f"ours beside {RECORD:,} img/s", rates[GENERATED] / RECORD, 0.5)


def goal(part: Part, name: str, ratio: float, least: float) -> None:
    """Add a row for a ratio that must be reached on a GPU; on a processor it means nothing."""
    if part.gpu:
        part.check(name, ratio >= least, f"{ratio:.2f} (at least {least})", ratio=ratio)
    else:
        part.add(name, "needs a GPU", "")


def clear(job: Job) -> None:
    """Free what the variant before has left."""
    gc.collect()
    if job.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main(work)
