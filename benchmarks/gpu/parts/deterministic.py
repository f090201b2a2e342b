"""`deterministic: true` gives the same bits twice. A process of its own: cuBLAS reads its setting once."""

from benchmarks.gpu import training
from benchmarks.gpu.part import Part, main

MODES = {"fp32": {}, "bf16, channels_last": {"precision": "bf16", "model__channels_last": True}}


def work(part: Part) -> None:
    """Each mode twice."""
    for name, over in MODES.items():
        if part.lacks_bf16(name, str(over.get("precision", "fp32"))):
            continue
        with part.guarded(name):
            folders = [part.folder / f"{name.replace(', ', '-')}-{turn}" for turn in range(2)]
            trees = [training.settings(folder, part.device, deterministic=True, **over) for folder in folders]
            first, second = (training.train(tree).losses for tree in trees)
            other = sum(one != two for one, two in zip(first, second, strict=True))
            text = f"losses of {len(first)} steps, {other} of them another in the second run"
            part.check(name, bool(first), text, bounds={"other": (None, 0)}, other=other, losses=first)


if __name__ == "__main__":
    main(work)
