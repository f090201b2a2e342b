"""A process imports what its run uses: each import below costs every rank of every start a tenth of a second to one."""

import functools
import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from conftest import ROOT, environment

from tests import patience
from trainyard.parallel import eager

# What a run on processors needs only where its settings, its model or its data ask for it
NOT_NEEDED = (
    "torch._dynamo", "torch._inductor", "torch.distributed.checkpoint", "torch.distributed.fsdp",
    "torch.distributed.tensor", "torch.onnx", "torch.utils.tensorboard", "triton", "sympy",
    "torchvision.datasets", "torchvision.io", "torchvision.models.detection", "torchvision.ops",
    "onnx", "onnxscript", "timm", "horovod", "wandb", "mlflow", "tensorboardX", "prometheus_client", "rich", "requests",
    "kaggle", "fsspec", "boto3", "matplotlib", "pandas", "scipy", "trainyard.prepare", "trainyard.pod",
)  # fmt: skip
# What a launcher has before it looks for its peers, which takes as long as they do; torch comes then
LAUNCHERS = ("torch", "numpy", "pydantic", "yaml", "trainyard.config")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What imported.py finds."""
    folder = tmp_path_factory.mktemp("imported")
    done = patience.run([sys.executable, "-m", "imported", str(folder)], cwd=ROOT, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return result


def below(packages: tuple[str, ...], modules: list[str]) -> list[str]:
    return [package for package in packages if any(f"{name}.".startswith(f"{package}.") for name in modules)]


def test_a_run_and_ddp_import_what_they_use(found: dict[str, Any]) -> None:
    assert below(NOT_NEEDED, found["modules"]) == []


def test_a_launcher_imports_little_before_torch() -> None:
    script = "import sys; from trainyard.pod import launcher, log; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert below(LAUNCHERS, done.stdout.split()) == []


def test_a_launcher_imports_of_torch_nothing_that_computes_shapes() -> None:
    script = (
        "import sys; from trainyard.pod import launcher\n"
        "assert launcher.main(['--nproc-per-node', '2', '--no-python', 'true']) == 0\n"
        "print(*sys.modules)"
    )
    done = patience.run([sys.executable, "-c", script], cwd=ROOT, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    modules = done.stdout.split()
    assert "torch.distributed.run" in modules
    assert below(("torch._decomp", "torch._prims", "torch._refs"), modules) == []


def test_ddp_and_optimizers_without_the_compiler_compute_what_torchs_own_do(found: dict[str, Any]) -> None:
    assert found["alike"]


def test_a_question_that_is_not_known_is_asked_of_the_compiler_itself(found: dict[str, Any]) -> None:
    assert found["asked"] == {"early": False, "same": True, "own": True}


def test_what_is_wrapped_in_another_way_stays_as_it_is() -> None:
    class Noted(torch.optim.SGD):
        @functools.wraps(torch.optim.SGD.step)
        def step(self, *given: Any) -> Any:
            return super().step(*given)

    for _ in range(2):  # before and after there is an optimizer of this class, which changes the class
        assert {"step", "zero_grad"} <= vars(eager.eager_class(torch.optim.SGD)).keys()
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    assert "step" not in vars(eager.eager_class(Noted))


def test_all_of_torchvision_has_the_models_that_were_imported_alone(found: dict[str, Any]) -> None:
    assert found["torchvision"] == {"all": True, "unbound": [], "same": True, "elsewhere": []}
