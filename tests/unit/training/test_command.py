"""What a trainer says before what takes long."""

import sys
from pathlib import Path

from conftest import ROOT, environment

from tests import patience


def test_a_start_says_so_before_torch_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit(5)\n")
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    options = ["--recipe", "demo", "--set", f"run.dir={tmp_path / 'run'}", "--set", "model.name=torchvision:resnet18"]
    done = patience.run([sys.executable, "-m", "trainers.ddp", *options], cwd=ROOT, env=env)
    assert done.returncode == 5, done.stderr
    assert done.stdout == "starting torchvision:resnet18 on 1 process: PyTorch is loaded, then data and model\n"
