"""Documents: command blocks run, or say what they need or which test runs them (tests/documents.py); links hold."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import documents, patience
from tests.documents import ROOT, blocks

pytestmark = pytest.mark.takes(30)


@pytest.mark.parametrize("block", [b for b in blocks() if not b.mark], ids=lambda b: b.where)
def test_the_block_runs(block):
    done = patience.run(["bash", "-euc", block.text], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def asked_for(test: str) -> list[str]:
    """Return the text of each block that a test takes: by words that it has, or all of a page that name the test."""
    calls = [node for node in ast.walk(ast.parse((ROOT / test).read_text())) if isinstance(node, ast.Call)]
    found = []
    for call in calls:
        if ast.unparse(call.func) in ("documents.text", "documents.texts", "documents.run", "pages.run"):
            page, *has = [str(one.value) for one in call.args[:3] if isinstance(one, ast.Constant)]
            found += [documents.text(page, *has)] if has else documents.texts(page, test)
    return found


@pytest.mark.parametrize("block", [b for b in blocks() if b.mark == "run by"], ids=lambda b: b.where)
def test_the_named_test_runs_the_blocks_own_text(block):
    assert block.text in asked_for(block.what)


def test_the_site_builds_and_no_link_leads_nowhere(tmp_path):
    done = patience.run([sys.executable, "-m", "hack.site", str(tmp_path / "site")], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_architecture_names_files_and_functions_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text()
    tops = ("charts", "docs", "hack", "images", "scripts", "src", "tests", "trainers")
    tree = ["/pyproject.toml", *(f"/{path.relative_to(ROOT)}" for top in tops for path in (ROOT / top).rglob("*.*"))]
    named = re.findall(r"`([\w./-]+(?:\.py|\.yaml|\.tpl|\.toml|/))(?::(\w+))?`", text)
    assert len(named) > 50
    for name, function in named:
        if "NAME" in name:
            continue
        tracked = [path for path in tree if path.endswith(f"/{name}") or (name[-1] == "/" and f"/{name}" in path)]
        assert tracked, f"docs/architecture.md: there is no {name}"
        if function:
            texts = [Path(f"{ROOT}{path}").read_text() for path in tracked]
            assert any(f"def {function}(" in text for text in texts), f"docs/architecture.md: {name} has no {function}"


COMMAND = re.compile(r"^(?:[A-Z_]+=\S+ )*trainyard ", re.M)


def test_a_block_on_the_cluster_that_a_make_target_starts_finds_each_of_its_programs():
    """Tests have .venv/bin and all tools on PATH, which hides what a reader lacks."""
    here = [one.text for one in blocks() if "build/kubeconfig PATH=" in one.text]
    assert len(here) >= 2
    made = subprocess.run(
        ["make", "-n", "cluster", "images"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    tools = re.findall(r"hack/tools/build ([a-z0-9 ]+)", made)
    for text in here:
        path = re.findall(r"PATH=(\S+)", text)[0].split(":")
        assert not COMMAND.search(text) or "$PWD/.venv/bin" in path, text
        for program in set(re.findall(r"^(helm3|helm|kubectl) ", text, re.M)):
            assert "$PWD/build/bin" in path
            assert any(program in one.split() for one in tools), f"no target makes {program}"


def test_every_mark_is_known_and_there_are_blocks_of_each_kind():
    assert {b.mark for b in blocks()} == {"", "needs", "run by"}
