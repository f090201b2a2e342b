"""torch.compile by itself, with CUDA graphs, and with gradient checkpointing under DDP: losses near the eager ones."""

from benchmarks.gpu import training
from benchmarks.gpu.part import Part, main
from benchmarks.gpu.parts.groups import ddp
from benchmarks.gpu.parts.modes import Modes, judge, run_modes

FAST = {"precision": "bf16", "model__channels_last": True, "model__compile": True}
MODES: Modes = {
    "compile": ({"model__compile": True}, 0.02),
    "bf16, compile": (FAST, 0.05),
    "bf16, reduce-overhead": ({**FAST, "model__compile_mode": "reduce-overhead"}, 0.05),
    "bf16, compile, checkpointing": ({**FAST, "model__checkpointing": True}, 0.05),
}
GROUP = "bf16, compile, checkpointing, DDP"


def work(part: Part) -> None:
    """Run each mode; compiling for a processor takes minutes and shows little."""
    if not part.gpu:
        for name in (*MODES, GROUP):
            part.needs_gpu(name)
        return
    base = training.train(training.settings(part.folder / "eager", part.device)).losses
    run_modes(part, MODES, set(), base)
    if part.lacks_bf16(GROUP, "bf16"):
        return
    with part.guarded(GROUP):
        tree = training.settings(part.folder / "group", part.device, **FAST, model__checkpointing=True, strategy="ddp")
        judge(part, GROUP, training.train(tree, ddp), base, 0.05)


if __name__ == "__main__":
    main(work)
