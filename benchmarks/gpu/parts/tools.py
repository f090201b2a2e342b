"""What surrounds training: the preflight's checks of the GPU, and a run that is exported, evaluated and predicts."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu import pictures, training
from benchmarks.gpu.part import Part, main

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 5.0  # of the test of memory


def work(part: Part) -> None:
    """Test the GPU first, then do a short run on JPEGs and what is done with its model."""
    with part.guarded("preflight"):
        preflight(part)
    shards = pictures.prepared(part.shared, 4096 if part.gpu else 48)
    run = part.folder / "run"
    tree = training.settings(
        run, part.device, data__dir=str(shards), max_steps=20 if part.gpu else 2, publish__export=["torch"],
        data__image_size=224 if part.gpu else 32, checkpoint__every_steps=0, precision="bf16" if part.bf16 else "fp16",
        model__num_classes=0,
    )  # fmt: skip
    with part.guarded("export"):
        training.train(tree)
        names = sorted(path.name for path in (run / "published").iterdir())
        part.check("export", {"model.pt2", "model.safetensors"} <= set(names), ", ".join(names))
    for program in ("evaluate", "predict"):
        with part.guarded(program):
            out = part.folder / program
            command = [sys.executable, "-m", "trainyard", program, "--model", str(run), "--data", str(shards),
                       "--out", str(out), "--device", part.device]  # fmt: skip
            done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
            files = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
            last = (done.stdout + done.stderr).strip().splitlines()[-1:]
            text = f"exit code {done.returncode}, {', '.join(files) or 'no files'}: {' '.join(last)[:200]}"
            part.check(program, done.returncode == 0 and bool(files), text)
    with part.guarded("accuracies"):
        summary = json.loads((run / "summary.json").read_text())
        found = [json.loads(path.read_text()) for path in (part.folder / "evaluate").glob("*.json")]
        values = [value["top1"] for value in found if isinstance(value, dict) and "top1" in value]
        right = any(abs(value - summary["top1"]) <= 2.0 for value in values)
        part.check("accuracies", right, f"{summary['top1']:.2f} by the run, {values} by trainyard evaluate")


def preflight(part: Part) -> None:
    """Run a kernel with a known result, then the test of memory."""
    if part.needs_gpu("preflight"):
        return
    import torch

    from trainyard.pod import gpus

    device = torch.device("cuda", 0)
    gpus.try_device(device)
    free, total = torch.cuda.mem_get_info(device)
    text = gpus.try_memory(device, int(gpus.SHARE * free), SECONDS)
    part.add("preflight", "ok", f"{text}; {free / 2**30:.1f} of {total / 2**30:.1f} GiB were free")
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main(work)
