"""ResNet-50 in 16 bits: images per second of the engine's whole loop beside torchvision's, timm's and DALI's steps.

Ours is the engine's own loop with everything that belongs to it, on generated pictures and on JPEGs from prepared
shards; torchvision's and timm's steps compute on one batch that lies on the GPU. The device is waited for only before
the first and after the last step that counts; a step of the engine that waits for it fails.
"""

import gc
from collections.abc import Callable
from dataclasses import replace

import torch

from benchmarks.gpu import peers, pictures
from benchmarks.gpu.arithmetic import RECORD, flop
from benchmarks.gpu.part import Part, main
from benchmarks.gpu.throughput import Found, Job, job_of, ours, step_of

# Dense bf16 TFLOP/s, NVIDIA's data sheets; the first name that is in the GPU's counts
PEAK = {"A100": 312.0, "H100 PCIe": 756.0, "H100 NVL": 835.0, "H100": 989.4, "H200": 989.4, "B200": 2250.0}
EXPECTED = {"H100 PCIe": 0.0, "H100 NVL": 0.0, "H100": 0.35, "H200": 0.5}  # of the record, eager
GENERATED, JPEGS, TORCHVISION, TIMM, DALI = (
    "ours, generated pictures", "ours, JPEGs", "torchvision's reference step (AMP)", "timm's step", "DALI and a step"
)  # fmt: skip

# What is promised, beside whom: timm's step has the same kernels and neither loader nor normalisation; torchvision's is
# NCHW in fp16, whose BatchNorm is cuDNN's
RATIOS = (
    ("JPEGs beside generated pictures", JPEGS, GENERATED, 0.95),
    (f"ours beside {TIMM}", GENERATED, TIMM, 0.97),
    (f"ours beside {TORCHVISION}", GENERATED, TORCHVISION, 1.2),
    ("bf16 beside fp16", GENERATED, f"{GENERATED}, fp16", 0.0),  # a figure alone: their BatchNorms differ
    (f"ours beside {TIMM}, compiled", f"{GENERATED}, compiled", f"{TIMM}, compiled", 0.95),
)


def work(part: Part) -> None:
    """All that is not compiled."""
    job, rates = job_of(part), dict[str, float]()
    shards = pictures.prepared(part.shared, job.pictures)
    drawn = part.shared / f"pictures-{job.pictures}" / "train"
    half = replace(job, precision="fp16")
    variants: dict[str, Callable[[], Found]] = {
        GENERATED: lambda: ours(job, None, False),
        JPEGS: lambda: ours(job, shards, False),
        TIMM: lambda: step_of(job, peers.timm_step(job.model, job.device, job.batch, job.size, False, kind_of(job))),
        TORCHVISION: lambda: step_of(job, peers.torchvision_step(job.model, job.device, job.batch, job.size, False)),
        f"{GENERATED}, fp16": lambda: ours(half, None, False),
        DALI: lambda: step_of(job, peers.dali_step(job.model, job.batch, job.size, drawn, kind_of(job))),
    }
    if job.precision == "fp16":
        del variants[f"{GENERATED}, fp16"]
    run_variants(part, job, variants, rates, {DALI, f"{GENERATED}, fp16"})


def kind_of(job: Job) -> torch.dtype:
    """Return the type in which peers compute."""
    return torch.float16 if job.precision == "fp16" else torch.bfloat16


def run_variants(
    part: Part, job: Job, variants: dict[str, Callable[[], Found]], rates: dict[str, float], gpu_only: set[str]
) -> None:
    """Time each variant; a ratio of two is recorded as soon as both are known."""
    for name, variant in variants.items():
        if name in gpu_only and part.needs_gpu(name):
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
        for text, one, other, least in RATIOS:
            if name in (one, other) and one in rates and other in rates:
                goal(part, text, rates[one] / rates[other], least if part.bf16 else 0.0)  # promised since A100
        if name == GENERATED:
            beside_the_record(part, rates.get(name, 0.0))


def beside_the_record(part: Part, rate: float) -> None:
    """Compare with the share of MLPerf's rate that is expected of this GPU, where one is."""
    name = torch.cuda.get_device_name() if part.gpu else ""
    least = next((share for key, share in EXPECTED.items() if key in name), 0.0)
    if rate and least:
        goal(part, f"ours beside {RECORD:,} img/s", rate / RECORD, least)


def report(part: Part, job: Job, name: str, found: Found) -> None:
    """Add a row: rate, share of the record and of the peak, memory, and where the engine's time went."""
    text = f"{found.rate:,.0f} img/s"
    if part.gpu:
        peak = next((peak for key, peak in PEAK.items() if key in torch.cuda.get_device_name()), 0.0)
        share = f", {found.rate * flop() / peak / 1e12:.0%} of {peak:,.0f} TFLOP/s" if peak else ""
        text += f" ({found.rate / RECORD:.0%} of {RECORD:,}{share}), {found.memory:.1f} GiB"
    whole = sum(found.split.values())
    shares = [f"{key} {value / whole:.1%}" for key, value in found.split.items() if whole and value / whole > 0.001]
    part.add(name, "ok", text + (f"; {', '.join(shares)}" if shares else ""), rate=found.rate)


def goal(part: Part, name: str, ratio: float, least: float) -> None:
    """Add a row for a ratio that must be reached on a GPU; on a processor it means nothing."""
    if part.gpu:
        part.check(name, True, f"{ratio:.2f} (at least {least})", bounds={"ratio": (least, None)}, ratio=ratio)
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
