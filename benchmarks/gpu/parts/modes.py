"""Every precision and mode for 50 steps with validation and checkpoints: losses near fp32's, no wait for the GPU."""

from typing import Any, get_args

from benchmarks.gpu import training
from benchmarks.gpu.part import Part, main
from trainyard.config import Config

# Bounds of the mean distance to fp32's losses, as a share of these. 16-bit formats hold 8 (bf16) or 11 (fp16) bits;
# TF32 holds 11. Accumulation changes what BatchNorm sees, mixup what is learnt.
MODES: dict[str, tuple[dict[str, Any], float | None]] = {
    "fp32": ({}, 0.0),
    "tf32": ({"precision": "tf32"}, 0.02),
    "bf16": ({"precision": "bf16"}, 0.05),
    "fp16": ({"precision": "fp16"}, 0.05),
    "channels_last": ({"model__channels_last": True}, 0.02),
    "bf16, channels_last": ({"precision": "bf16", "model__channels_last": True}, 0.05),
    "EMA": ({"ema__decay": 0.9}, 0.02),
    "accumulation": ({"batch__micro": 4}, 0.25),
    "mixup": ({"augment__mixup": 0.2}, None),
    "compile": ({"model__compile": True}, 0.02),
    "bf16, compile": ({"precision": "bf16", "model__compile": True, "model__channels_last": True}, 0.05),
}
GPU_ONLY = {"tf32", "fp16", "compile", "bf16, compile"}  # compiling for a processor takes minutes and shows little
# Waits for the GPU that are allowed, whatever the size: counts, loss and confusions of a validation; in fp16, the
# scaler's two numbers in a checkpoint
PER_VALIDATION, PER_SAVE = 4, {"fp16": 2}


def work(part: Part) -> None:
    """Run each mode."""
    known = get_args(Config.model_fields["precision"].annotation)
    base: list[float] = []
    for name, (over, bound) in MODES.items():
        if name in GPU_ONLY and part.needs_gpu(name):
            continue
        if over.get("precision", "fp32") not in known:
            part.add(name, "not known", f"precision is one of {', '.join(known)}")
            continue
        with part.guarded(name):
            micro = {"batch__micro": 32} if "batch__micro" in over and part.gpu else {}
            folder = part.folder / name.replace(", ", "-")
            run = training.train(training.settings(folder, part.device, **{**over, **micro}))
            base = base or run.losses
            judge(part, name, run, base, bound)


def judge(part: Part, name: str, run: training.Seen, base: list[float], bound: float | None) -> None:
    """Record whether losses are as near to fp32's as they must be, and that nothing waited for the GPU."""
    distance = sum(abs(a - b) / abs(b) for a, b in zip(run.losses, base, strict=True)) / len(base)
    near = bound is None or distance <= bound
    stated = "" if bound is None else f" (at most {bound:.0%})"
    waits = ", ".join(f"{key} {count}" for key, count in run.waits.items())
    allowed = {
        "train_step": 0, "save": PER_SAVE.get(name, 0) * run.calls["save"],
        "evaluate": PER_VALIDATION * run.calls["evaluate"],
    }  # fmt: skip
    calm = all(run.waits[key] <= most for key, most in allowed.items())
    text = f"loss {run.losses[0]:.3f} to {run.losses[-1]:.3f}, {distance:.2%} from fp32's{stated}"
    if part.gpu:
        text += f"; waits for the GPU: {waits}" + ("" if calm else f" at {', '.join(sorted(set(run.places))[:6])}")
    part.check(name, run.finite() and near and calm, text, losses=run.losses, distance=distance, waits=run.waits)


if __name__ == "__main__":
    main(work)
