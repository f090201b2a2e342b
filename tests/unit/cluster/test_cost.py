"""Time and money of a run before it starts: from values, recipes, measured runs; each figure has its source."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import documents
from tests.documents import ROOT
from tests.unit.prepare.fixtures import archive, prepared
from trainyard.cluster import cost

__all__ = ["archive", "prepared"]
VALUES = """
global:
  training:
    nodes: 2
    gpusPerNode: 8
    recipe: resnet50-nvidia-90
    config: {epochs: 10}
mpijob: {enabled: true, training: {nodes: 4}}
"""


def figures(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cost.main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert all(one["source"] and one["unit"] for one in found.values())
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cost.main(words) == 2
    return capsys.readouterr().err


def summary(folder: Path, **over: Any) -> Path:
    """A finished run's summary.json, as a run writes it."""
    seconds = {"data_wait": 10.0, "compute": 80.0, "communication": 5.0, "checkpoint": 4.0, "other": 1.0,
               "validation": 20.0, "init": 30.0, "publish": 12.0}  # fmt: skip
    written = {
        "images_per_second": 4000.0, "world_size": 2, "seconds": seconds, "validation_samples": 50_000, "epochs": 2,
        "config": {"model": {"name": "torchvision:resnet50"}, "data": {"image_size": 224},
                   "validate": {"every_epochs": 1}},
        **over,
    }  # fmt: skip
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps(written))
    return folder


def test_values_and_a_published_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "values.yaml").write_text(VALUES)
    words = ("-f", str(tmp_path / "values.yaml"), "--images", "imagenet", "--published", "A100", "--price", "2.5")
    found = figures(capsys, *words)
    assert found["training images"]["value"] == 10 * 1_281_167
    assert found["GPU hours"]["source"] == "time on 32 GPUs"  # 4 nodes, as the job that trains says
    assert found["training"]["value"] == pytest.approx(12_811_670 / (2078 * 32))
    assert "NVIDIA DeepLearningExamples" in found["rate of a GPU"]["source"]
    assert found["money"]["value"] == pytest.approx(2.5 * found["GPU hours"]["value"])
    more = tmp_path / "more.yaml"
    more.write_text("global: {training: {config: {epochs: 20}}}\n")
    assert (
        figures(capsys, "-f", str(tmp_path / "values.yaml"), "-f", str(more), *words[2:])["training images"]["value"]
        == 20 * 1_281_167
    )
    assert cost.main(words) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("torchvision:resnet50 on 32 GPUs\n")
    assert "2.5 USD a GPU hour" in shown


def test_gpus_of_spare_pods_cost_and_do_not_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "values.yaml").write_text(
        "global: {training: {nodes: 2, gpusPerNode: 8, recipe: resnet50-nvidia-90}}\n"
    )
    (tmp_path / "spares.yaml").write_text("pytorchjob: {form: elastic, elastic: {spares: 1, maxRestarts: 100}}\n")
    words = ("--images", "imagenet", "--published", "A100", "-f", str(tmp_path / "values.yaml"))
    without = figures(capsys, *words)
    found = figures(capsys, *words, "-f", str(tmp_path / "spares.yaml"))
    assert found["time"] == without["time"]
    assert found["GPU hours"]["source"] == "time on 16 GPUs, and 8 of spare pods"
    assert found["GPU hours"]["value"] == pytest.approx(1.5 * without["GPU hours"]["value"])
    (tmp_path / "form.yaml").write_text("pytorchjob: {form: master}\n")
    assert figures(capsys, *words, *("-f", str(tmp_path / "spares.yaml")), "-f", str(tmp_path / "form.yaml")) == without


def test_gpus_of_spare_workers_cost_and_do_not_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "values.yaml").write_text(
        "mpijob: {spares: 2}\n"
        "global: {training: {operator: mpijob, nodes: 2, gpusPerNode: 8, recipe: resnet50-nvidia-90}}\n"
    )
    found = figures(capsys, "--images", "imagenet", "--published", "A100", "-f", str(tmp_path / "values.yaml"))
    assert found["GPU hours"]["source"] == "time on 16 GPUs, and 16 of spare pods"


def test_a_run_that_was_measured_gives_all_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = summary(tmp_path / "run")
    words = ("--recipe", "resnet50-nvidia-90", "--images", "1000000", "--val-images", "50000", "--gpus", "2")
    found = figures(capsys, *words, "--measured", str(run))
    assert found["rate of a GPU"]["value"] == 2000
    assert found["scaling"]["source"] == "measured on as many"
    assert found["validation"]["value"] == pytest.approx(90 * 10)  # 10 s each, as there
    assert (found["start and end"]["value"], found["start and end"]["source"]) == (42, "measured")
    four = figures(capsys, *words[:-1], "4", "--measured", str(run / "summary.json"))
    assert four["scaling"]["source"].startswith("assumed")
    assert four["training"]["value"] == pytest.approx(found["training"]["value"] / 2)
    slower = figures(capsys, *words[:-1], "4", "--measured", str(run), "--scaling", "0.5")
    assert slower["training"]["value"] == pytest.approx(found["training"]["value"])


def test_a_prepared_dataset_is_counted(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, "--recipe", "demo", "--data", str(prepared), "--rate", "100", "--set", "epochs=2")
    assert found["training images"]["value"] == 600
    assert found["validation images"]["value"] == 180
    assert "money" not in found


def test_settings_hold_rate_and_price(capsys: pytest.CaptureFixture[str]) -> None:
    told = (
        "--set",
        "cost.rate=50",
        "--set",
        "cost.source=a run of May",
        "--set",
        "cost.price=3",
        "--set",
        "cost.currency=EUR",
    )
    found = figures(capsys, "--recipe", "demo", "--images", "6000", *told)
    assert (found["rate of a GPU"]["value"], found["rate of a GPU"]["source"]) == (50, "a run of May")
    assert found["money"]["unit"] == "EUR"


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo = ("--recipe", "demo", "--images", "6000")
    assert "give -f VALUES, --config FILE or --recipe NAME" in refused(capsys)
    assert "give --images N (or imagenet), or --data" in refused(capsys, "--recipe", "demo")
    assert "give --measured RUN, --rate N, or --published" in refused(capsys, *demo)
    assert "--published is for resnet50 at 224 pixels" in refused(capsys, *demo, "--published", "A100")
    other = summary(tmp_path / "other")
    assert "trained torchvision:resnet50 at 224 pixels" in refused(capsys, *demo, "--measured", str(other))
    assert "holds no rate" in refused(capsys, *demo, "--measured", str(summary(tmp_path / "none", images_per_second=0)))
    assert "batch.global = 192: smaller than the 500 processes" in refused(
        capsys, *demo, "--rate", "1", "--gpus", "500"
    )


def test_the_page_is_what_the_command_prints() -> None:
    """The command of docs/cost.md, by its own text, prints what the page shows."""
    assert documents.run("cost.md", "trainyard cost --recipe").stdout.strip() in (ROOT / "docs/cost.md").read_text()
