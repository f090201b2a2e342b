"""The global batch and the losses on 1, 2 and 4 processes over gloo, ours and as the SDK's page has it."""

import inspect
import json
import sys
from pathlib import Path

import functions
import page
import pytest
from fleet import environment
from forked import shared

WORLDS = (1, 2, 4)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict]:
    """The summary of `train_ddp` by the number of processes, and under `page` the samples of a step of the page's."""
    root = tmp_path_factory.mktemp("ranks")
    folders = [root / str(world) for world in WORLDS]
    for folder in folders:
        folder.mkdir()
    text = [inspect.getsource(function) for function in (functions.train_ddp, page.samples_in_a_step)]
    calls = "samples_in_a_step('.')\ntrain_ddp(global_batch=32, epochs=1, results='.')\n"
    (root / "program.py").write_text("\n".join([*text, calls]))
    words = [str(root / "program.py"), *map(str, folders)]
    env = environment({"PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[2]}"})
    done = shared().run([sys.executable, "-m", "ranks", *words], env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {int(folder.name): json.loads((folder / "summary.json").read_text()) for folder in folders}
    for folder in folders:
        found[int(folder.name)]["page"] = sum(int(path.read_text()) for path in folder.glob("page-*"))
    return found


def test_the_global_batch_stays_and_the_pages_grows_by_the_square(seen: dict[int, dict]) -> None:
    assert [seen[world]["processes"] for world in WORLDS] == [1, 2, 4]
    assert [seen[world]["samples_per_step"] for world in WORLDS] == [32, 32, 32]
    assert [seen[world]["page"] for world in WORLDS] == [32, 128, 512]


def test_the_loss_does_not_depend_on_the_number_of_processes(seen: dict[int, dict]) -> None:
    alone = seen[1]["losses"]
    for world in (2, 4):
        assert seen[world]["losses"] == pytest.approx(alone, rel=1e-5)  # fp32


def test_the_document_has_both_numbers() -> None:
    document = (Path(__file__).resolve().parents[2] / "docs" / "sdk.md").read_text()
    assert "| the page | 32 | 128 | 512 |" in document
    assert "| `train_ddp` | 32 | 32 | 32 |" in document
