"""torch.compile that tries out kernels (max-autotune), which takes minutes."""

from benchmarks.gpu import training
from benchmarks.gpu.part import Part, main
from benchmarks.gpu.parts.compile import FAST
from benchmarks.gpu.parts.modes import Modes, run_modes

MODES: Modes = {
    f"bf16, {mode}": ({**FAST, "model__compile_mode": mode}, 0.05)
    for mode in ("max-autotune-no-cudagraphs", "max-autotune")
}


def work(part: Part) -> None:
    """Run each mode."""
    if not part.gpu:
        for name in MODES:
            part.needs_gpu(name)
        return
    base = training.train(training.settings(part.folder / "eager", part.device)).losses
    run_modes(part, MODES, set(), base)


if __name__ == "__main__":
    main(work)
