"""Every precision and mode for 50 steps with validation and checkpoints: losses near fp32's, no wait for the GPU."""

from typing import Any, get_args

from benchmarks.gpu import training
from benchmarks.gpu.part import Part, main
from trainyard.config import Config

Modes = dict[str, tuple[dict[str, Any], float | None]]
# Bounds of the distance to fp32's losses (training.apart). 16-bit formats hold 8 (bf16) or 11 (fp16) bits; TF32 holds
# 11. Accumulation changes what BatchNorm sees; another optimizer, loss or model learns something else: no bound.
MODES: Modes = {
    "fp32": ({}, 0.0),
    "tf32": ({"precision": "tf32"}, 0.02),
    "bf16": ({"precision": "bf16"}, 0.05),
    "fp16": ({"precision": "fp16"}, 0.05),
    "channels_last": ({"model__channels_last": True}, 0.02),
    "bf16, channels_last": ({"precision": "bf16", "model__channels_last": True}, 0.05),
    "EMA": ({"ema__decay": 0.9}, 0.02),
    "checkpointing": ({"model__checkpointing": True}, 0.02),
    "bf16, checkpointing": ({"precision": "bf16", "model__checkpointing": True}, 0.05),
    "clip_norm": ({"optimizer__clip_norm": 1000.0}, 0.02),
    "fp16, clip_norm": ({"precision": "fp16", "optimizer__clip_norm": 1.0}, None),
    "accumulation": ({"batch__micro": 4}, 0.25),
    "mixup": ({"augment__mixup": 0.2}, None),
    "fp16, mixup and cutmix": ({"precision": "fp16", "augment__mixup": 0.2, "augment__cutmix": 1.0}, None),
    "bce": ({"loss__name": "bce"}, None),
    "adamw": ({"optimizer__name": "adamw", "optimizer__lr": 0.001}, None),
    "fp16, adamw": ({"precision": "fp16", "optimizer__name": "adamw", "optimizer__lr": 0.001}, None),
    "lamb": ({"optimizer__name": "lamb", "optimizer__lr": 0.005}, None),
    "fp16, lamb": ({"precision": "fp16", "optimizer__name": "lamb", "optimizer__lr": 0.005}, None),
}
# Attention, with forwards that are left without samples in each epoch's last batch
ATTENDING = {"model__name": "benchmarks.gpu.models:attending", "batch__micro": 2}
for _precision in ("fp32", "bf16", "fp16"):
    MODES[f"attention, empty forwards, {_precision}"] = ({**ATTENDING, "precision": _precision}, None)
# Processors have neither, and the little model that they run has no blocks to compute again
GPU_ONLY = {
    name for name, (over, _) in MODES.items()
    if over.get("precision") in ("tf32", "fp16") or "model__checkpointing" in over
}  # fmt: skip
# Waits for the GPU that are allowed, whatever the size: counts, loss and confusions of a validation; in fp16, the
# scaler's two numbers in a checkpoint
PER_VALIDATION, PER_SAVE = 4, 2


def work(part: Part) -> None:
    """Run each mode."""
    run_modes(part, MODES, GPU_ONLY)


def run_modes(part: Part, modes: Modes, gpu_only: set[str], base: list[float] | None = None) -> None:
    """Run each mode and judge it by the losses of `base`, or else by the first one's."""
    known = get_args(Config.model_fields["precision"].annotation)
    base = base or []
    for name, (over, bound) in modes.items():
        if name in gpu_only and part.needs_gpu(name):
            continue
        if part.lacks_bf16(name, over.get("precision", "fp32")):
            continue
        if over.get("precision", "fp32") not in known:
            part.add(name, "not known", f"precision is one of {', '.join(known)}")
            continue
        with part.guarded(name):
            folder = part.folder / name.replace(", ", "-")
            run = training.train(training.settings(folder, part.device, **sized(part, over)))
            base = base or run.losses
            judge(part, name, run, base if bound is not None else run.losses, bound)


def sized(part: Part, over: dict[str, Any]) -> dict[str, Any]:
    """Return a mode's settings for the size of the run: on a GPU forwards are larger."""
    micro = over.get("batch__micro")
    if micro is None:
        return over
    if over.get("model__name") == ATTENDING["model__name"]:  # 4 forwards, of which the last batch leaves some empty
        return {**over, "batch__micro": 16 if part.gpu else micro, "data__synthetic_samples": 642 if part.gpu else 33}
    return {**over, "batch__micro": 8 * micro if part.gpu else micro}


def judge(part: Part, name: str, run: training.Seen, base: list[float], bound: float | None) -> None:
    """Record whether losses are as near to fp32's as they must be, and that nothing waited for the GPU."""
    distance = training.apart(run.losses, base)
    stated = "" if bound is None else f", {distance:.2%} from fp32's (at most {bound:.0%})"
    waits = ", ".join(f"{key} {count}" for key, count in run.waits.items())
    allowed = {
        "train_step": 0, "flush": 0, "save": PER_SAVE * run.calls["save"] if "fp16" in name else 0,
        "evaluate": PER_VALIDATION * run.calls["evaluate"],
    }  # fmt: skip
    calm = all(run.waits[key] <= most for key, most in allowed.items())
    bounds = {f"waits.{key}": (None, most) for key, most in allowed.items()}
    bounds |= {} if bound is None else {"distance": (None, bound)}
    text = f"loss {run.losses[0]:.3f} to {run.losses[-1]:.3f}{stated}"
    if part.gpu:
        text += f"; waits for the GPU: {waits}" + ("" if calm else f" at {', '.join(sorted(set(run.places))[:6])}")
    part.check(name, run.finite(), text, bounds=bounds, losses=run.losses, distance=distance, waits=run.waits)


if __name__ == "__main__":
    main(work)
