"""`helm lint`, `helm lint --strict` and `ct lint` refuse what `helm template` refuses, in the same words."""

import re
import subprocess

import pytest
import yaml

from . import helm
from .mistakes import BASE

REFUSED = {
    "nothing set": ({}, "Please set:"),
    "a misspelt key": (helm.merged(BASE, helm.at("global.training.nodez", 3)), "did you mean nodes?"),
    "memory without a unit": (
        helm.merged(BASE, helm.at("global.training.resources.requests.memory", 64)), "such as 16Gi"
    ),
    "the tag latest": (helm.merged(BASE, helm.at("global.image.tag", "latest")), "which names another image tomorrow"),
    "two batches": (
        helm.merged(BASE, helm.at("global.training.config.batch", {"global": 256, "per_process": 32})), "keep global"
    ),
}  # fmt: skip


def lint(program: str, values: helm.Values, *options: str) -> tuple[int, str]:
    command = [helm.BIN / program, "lint", helm.CHART, "-f", "-", *options]
    done = subprocess.run(command, input=yaml.safe_dump(values), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "program", "options"),
    [*((name, "helm3", ()) for name in REFUSED), ("two batches", "helm4", ()), ("two batches", "helm4", ("--strict",))],
)
def test_lint_refuses_what_template_refuses(name: str, program: str, options: tuple[str, ...]):
    values, said = REFUSED[name]
    with pytest.raises(helm.HelmError, match=re.escape(said)):
        helm.template(values)
    code, text = lint(program, values, *options)
    assert code == 1
    assert text.count("[ERROR]") == 1
    assert said in text.partition("[ERROR]")[2].partition("\n\n")[0]
    assert "invalid value" not in text, "a template went on after its refusal"


@pytest.mark.parametrize("program", helm.HELMS)
def test_lint_passes_what_renders(program: str):
    code, text = lint(program, BASE, "--strict")
    assert code == 0, text
