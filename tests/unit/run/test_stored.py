"""Run directories that older code wrote are resumed bit by bit; a setting that would change the run is refused.

stored/KIND was written by version 0.1.0 on two processes, with checkpoints of format 2 (the optimizer's state is keyed
by position); both processes were killed after step 4 of 6. stored/KIND-end is what the same code came to undisturbed.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fleet import Fleet
from published import weights
from starting import run_directory

from trainyard import config
from trainyard.core.exits import UserError
from trainyard.run import checkpoint, directory
from trainyard.run.tensor_file import read

pytestmark = pytest.mark.takes(10)

STORED = Path(__file__).parent / "stored"
KINDS = ["ddp", "fsdp"]  # sgd with an average of the weights; adamw
SAVED, STEPS = 3, 6


def settings(kind: str, **over: Any) -> dict[str, Any]:
    """The settings of a stored run, as flags take them."""
    tree = config.read_file(STORED / kind / "config.yaml")
    flags = {f"{key}.{name}": value for key, section in tree.items() if isinstance(section, dict)
             for name, value in section.items() if (key, name) != ("run", "dir")}  # fmt: skip
    plain = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    return {**flags, **plain, "epochs": None, "max_steps": STEPS, **over}


def resume(fleet: Fleet, folder: Path, kind: str, source: Path, **over: Any) -> tuple[list[int], str, Path]:
    """Resume a copy of a run directory: exit codes, output, and where."""
    run = folder / "run"
    shutil.copytree(source, run)
    return (*fleet.wait(fleet.start(run, 2, **settings(kind, **over))), run)


def tensors(run: Path, step: int, name: str = "model") -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = read(run / "checkpoints" / f"step-{step:08d}" / f"{name}.safetensors")
    return found


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module", params=KINDS)
def undisturbed(request: pytest.FixtureRequest, fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This code's result on this machine without interruption; the folder's name is the kind."""
    run = tmp_path_factory.mktemp("undisturbed") / request.param
    return fleet.train(run, 2, **settings(request.param))


@pytest.mark.parametrize("kind", KINDS)
def test_stored_weights_are_loaded_as_they_are(fleet: Fleet, tmp_path: Path, kind: str) -> None:
    """A run that ends where its checkpoint stands publishes that: the weights, or their average."""
    codes, output, run = resume(fleet, tmp_path, kind, STORED / kind, max_steps=SAVED)
    assert codes == [0, 0], output
    assert f"resumed at step {SAVED}" in output
    wanted = tensors(STORED / kind, SAVED)
    if kind == "ddp":
        wanted |= tensors(STORED / kind, SAVED, "ema")
    assert equal(weights(run), wanted)


def test_a_stored_run_resumes_to_what_it_would_have_come_to(fleet: Fleet, tmp_path: Path, undisturbed: Path) -> None:
    kind = undisturbed.name
    codes, output, run = resume(fleet, tmp_path, kind, STORED / kind)
    assert codes == [0, 0], output
    trees = ["model", *(["ema"] if kind == "ddp" else [])]
    for name in trees:
        found, wanted = tensors(run, STEPS, name), read(STORED / f"{kind}-end" / f"{name}.safetensors")
        for key, value in wanted.items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-12)
        # A processor that rounds sums as the one that stored them must come to the same bits
        if equal(tensors(undisturbed, SAVED), tensors(STORED / kind, SAVED)):
            assert equal(found, wanted)
    assert (run / "samples" / "rank-1.jsonl").read_text() == (undisturbed / "samples" / "rank-1.jsonl").read_text()


def test_a_checkpoint_keyed_by_position_resumes_to_the_same_bits(
    fleet: Fleet, tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On any processor: this code's own checkpoint, put into the older format."""
    source = tmp_path / "source"
    shutil.copytree(undisturbed, source)
    (source / "summary.json").unlink()
    shutil.rmtree(source / "checkpoints" / f"step-{STEPS:08d}")
    found = checkpoint.at(source / "checkpoints" / f"step-{SAVED:08d}")
    state = found.load()
    groups = state["optimizer"]["param_groups"]
    order = [name for group in groups for name in group["params"]]
    assert len(order) == len(state["optimizer"]["state"]) > 4
    state["optimizer"] = {
        "state": {order.index(name): entry for name, entry in state["optimizer"]["state"].items()},
        "param_groups": [{**group, "params": [order.index(name) for name in group["params"]]} for group in groups],
    }
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    meta = {key: value for key, value in found.meta.items() if key not in ("format", "files", "step")}
    checkpoint.save(source / "checkpoints", SAVED, state, meta)
    codes, output, run = resume(fleet, tmp_path, undisturbed.name, source)
    assert codes == [0, 0], output
    assert f"resumed at step {SAVED}" in output
    assert equal(tensors(run, STEPS), tensors(undisturbed, STEPS))
    one, other = tensors(run, STEPS, "optimizer"), tensors(undisturbed, STEPS, "optimizer")
    assert one["state"].keys() == other["state"].keys()
    for name, entry in other["state"].items():
        assert equal(one["state"][name], entry)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        (
            {"optimizer": {"name": "lamb", "eps": 1e-6}},
            "optimizer.name = 'lamb', but .* holds a run with 'adamw'",
        ),
        (
            {"optimizer": {"no_decay": ["norm"]}},
            r"optimizer.no_decay = \['norm'\], but .* a run with \['bias', 'norm'\]",
        ),
        ({"seed": 2}, "seed = 2, but .* holds a run with 1"),
        ({"seed": 0}, "seed = 0, but .* holds a run with 1"),
    ],
)
def test_what_would_be_another_run_is_refused_in_words(tmp_path: Path, over: dict[str, Any], words: str) -> None:
    shutil.copytree(STORED / "fsdp", tmp_path / "run")
    tree = config.read_file(STORED / "fsdp" / "config.yaml")

    def start(layer: dict[str, Any]) -> Any:
        own = config.build(tree, {"run": {"dir": str(tmp_path / "run")}}, layer)
        wanted = directory.identity(own.model, own.optimizer, own.seed, batch=tree["batch"]["global"])
        return run_directory(own).start(wanted)

    with pytest.raises(UserError, match=words):
        start(over)
    assert start({}).step == SAVED


def test_another_number_of_samples_is_refused_in_words(fleet: Fleet, tmp_path: Path, undisturbed: Path) -> None:
    codes, output, _ = resume(
        fleet, tmp_path, undisturbed.name, undisturbed, max_steps=9, **{"data.synthetic_samples": 27}
    )
    assert codes == [2, 2]
    assert "data.samples = 27, but " in output
    assert "holds a run with 26; give this run another name" in output
