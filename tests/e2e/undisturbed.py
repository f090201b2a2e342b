"""A short training that tests interrupt, and its result without interruption, which all tests share."""

import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import patience
from tests.e2e import cluster, gated

STEPS = 100
FIRST = 12  # after which a test holds it
SMALL = {"max_steps": STEPS, "batch.global": 16, "checkpoint.every_steps": 0, "wandb.mode": "off"}
CONFIG = SMALL | gated.CONFIG
# The same as settings of the chart on examples/demo.yaml; two ranks of one thread each
HELM = (
    "--set", "global.training.processesPerNode=1",
    "--set", "global.training.env[3].name=OMP_NUM_THREADS", "--set-string", "global.training.env[3].value=1",
    *(part for key, value in SMALL.items() for part in ("--set", f"global.training.config.{key}={value}")),
    *gated.settings(FIRST, env=4),
)  # fmt: skip


def train(folder: Path, data: Path, config: Mapping[str, object], processes: int) -> Path:
    """Return the run directory of the demo's recipe with these settings on this machine.

    The first caller trains it; `folder` is shared by all callers, and the others wait meanwhile.
    """
    facts = [sorted(config.items()), processes, (data / "manifest.json").read_text()]
    run = folder / f"undisturbed-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]}"
    with run.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (run / "published").exists():
            settings = {**config, "data.dir": str(data), "run.dir": str(run)}
            options = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
            launch = ("-m", "trainyard", "launch", "--nproc-per-node", str(processes), "-m", "trainers.ddp")
            done = patience.run(
                [sys.executable, *launch, "--recipe", "demo", *options], cwd=cluster.ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(gated.FOLDER)},
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
    return run


def weights(run: Path) -> dict[str, Any]:
    """Read the published weights of a run: tensors by name."""
    import torch  # imported late, here and by other tests on the cluster: each worker that collects them would take 2 s

    return torch.load(run / "published" / "model.pth", weights_only=True)


def bit_equal(expected: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether all weights are the same bits."""
    return all(tensor.equal(found[name]) for name, tensor in expected.items())
