"""Evaluation: a run's own numbers again, on any number of processes, from shards, folders and zips; what it refuses."""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import browser
import numpy as np
import pages
import pytest
from conftest import Trainer, picture
from forked import Forker

from tests import patience
from trainyard.core.exits import UserError
from trainyard.inference import evaluate
from trainyard.inference.evaluation_page import MOST_IMAGES, mistakes
from trainyard.inference.forward import Outcome
from trainyard.inference.measures import calibration, measure, worst
from trainyard.prepare.sample import CLASSES
from trainyard.report.confusion import Confusion

pytestmark = [pytest.mark.takes(60), pytest.mark.ranks(3)]


@pytest.fixture(scope="module")
def run(session_trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that validates and publishes an average of its weights."""
    return session_trainer.train(tmp_path_factory.mktemp("evaluated") / "run", **{"ema.decay": 0.7})


def evaluated(out: Path, model: Path, data: object, *more: str) -> dict[str, Any]:
    """What evaluating says, in this process."""
    assert evaluate.main(["--model", str(model), "--data", str(data), "--out", str(out), "--device", "cpu", *more]) == 0
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result


def without(result: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key not in ("seconds", *keys)}


def test_numbers_are_those_of_the_run(run: Path, data: Path, tmp_path: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    whole = evaluated(tmp_path / "run", run, data)
    assert (whole["top1"], whole["top5"], whole["samples"]) == (summary["top1"], summary["top5"], 1003)
    assert 25 < whole["top1"] < 100  # it has learnt something, and not everything
    with np.load(run / "validation" / "confusion.npz") as own, np.load(tmp_path / "run" / "confusion.npz") as ours:
        assert np.array_equal(own["confusion"], ours["confusion"])
    checkpoint = max((run / "checkpoints").glob("step-*"))
    for model in (checkpoint, run / "published"):
        assert without(evaluated(tmp_path / "again", model, data), "model") == without(whole, "model"), model
    shutil.rmtree(tmp_path / "run")
    copy = shutil.copytree(run, tmp_path / "unpublished", ignore=shutil.ignore_patterns("published"))
    unpublished = evaluated(tmp_path / "run", copy, data)  # its newest checkpoint
    assert str(copy / "checkpoints" / checkpoint.name) in unpublished["model"]["from"]
    assert without(unpublished, "model") == without(whole, "model")


def test_counts_are_identical_on_1_2_and_3_processes(trainer: Trainer, run: Path, data: Path, tmp_path: Path) -> None:
    found = []
    for processes in (1, 2, 3):
        out = tmp_path / str(processes)
        process = trainer.python(
            "-m", "trainyard", "launch", "--nproc-per-node", str(processes), "-m", "trainyard", "evaluate",
            "--model", str(run), "--data", str(data), "--out", str(out), "--device", "cpu",
        )  # fmt: skip
        output, _ = patience.communicate(process)
        assert process.returncode == 0, output
        assert "1,003 images" in output
        found.append(without(json.loads((out / "result.json").read_text())))
    assert found[0] == found[1] == found[2]  # all numbers, also of the worst pictures, to the last digit


def test_zips_and_folders_give_what_shards_give(run: Path, data: Path, tmp_path: Path) -> None:
    shards = evaluated(tmp_path / "shards", run, data)
    packed = data.parent / "little.zip"
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(tmp_path / "unpacked")
    for where in (packed, tmp_path / "unpacked"):
        found = evaluated(tmp_path / "out", run, where)
        for key in ("samples", "correct1", "correct5", "top1", "classes"):
            assert found[key] == shards[key], (where, key)
        assert found["loss"] == pytest.approx(shards["loss"])
    alone = evaluated(tmp_path / "out", run, tmp_path / "unpacked" / "val")
    assert without(alone, "data", "worst") == without(found, "data", "worst")
    train = evaluated(tmp_path / "out", run, packed, "--split", "train")
    assert train["samples"] == 58


def test_classes_are_matched_by_name(run: Path, tmp_path: Path) -> None:
    for label in (3, 1):  # a part of the model's classes
        for number in range(6):
            path = tmp_path / "pictures" / f"class{label}" / "deeper" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(label, number))
    found = evaluated(tmp_path / "out", run, tmp_path / "pictures")
    assert [row["samples"] for row in found["classes"]] == [0, 6, 0, 6]
    assert found["remarks"] == ["classes matched by name: 2 of 4"]
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:  # below a folder of its own, and of one class
        for number in range(6):
            archive.writestr(f"mine/class3/{number}.jpg", picture(3, number))
        archive.writestr("__MACOSX/mine/class3/._0.jpg", b"not a picture")
    one = evaluated(tmp_path / "out", run, tmp_path / "one.zip")
    assert [row["samples"] for row in one["classes"]] == [0, 0, 0, 6]
    assert one["classes"][3] == found["classes"][3] | {"precision": one["classes"][3]["precision"]}


def test_what_does_not_fit_is_refused_in_words(run: Path, data: Path, tmp_path: Path) -> None:
    for name in ("clas3", "class1"):
        (tmp_path / "odd" / name).mkdir(parents=True)
        (tmp_path / "odd" / name / "1.jpg").write_bytes(picture(1, 1))
    flat = tmp_path / "odd" / "class1"
    (tmp_path / "empty").mkdir()
    shutil.copytree(run / "published", tmp_path / "damaged")
    with (tmp_path / "damaged" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    (tmp_path / "half.zip").write_bytes((data.parent / "little.zip").read_bytes()[:-500])
    for model, where, more, said in (
        (run, tmp_path / "odd", [], r"knows no class 'clas3'; did you mean 'class3'\? it has 4: class0, class1"),
        (run, flat, [], "images lie outside of a folder named by their class.*use `trainyard predict`"),
        (run, tmp_path / "nowhere", [], "--data .*nowhere: no such folder or file"),
        (run, tmp_path / "empty", [], "holds no images"),
        (run, tmp_path / "odd", ["--split", "val"], "--split val: .* has no folder of a split"),
        (run, tmp_path / "half.zip", [], "not a sound zip|cut short"),
        (tmp_path / "nowhere", data, [], "--model .*nowhere: no such folder.*give a run directory"),
        (run / "logs", data, [], "neither config.json nor checkpoints are in it"),
        (run / "published" / "model.pth", data, [], "is a file: its classes and image size are not known"),
        (tmp_path / "damaged", data, [], "does not have the SHA-256 that SHA256SUMS names"),
    ):
        with pytest.raises(UserError, match=said):
            evaluated(tmp_path / "out", model, where, *more)
    assert not (tmp_path / "out").exists()


def test_pictures_that_cannot_be_decoded_are_all_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "pictures" / "class0").mkdir(parents=True)
    for number in range(4):
        content = picture(0, number) if number % 2 else b"\xff\xd8\xff broken"
        (tmp_path / "pictures" / "class0" / f"{number}.jpg").write_bytes(content)
    with pytest.raises(UserError, match=r"(?s)2 of 4 images cannot be decoded.*class0/0\.jpg: .*\n.*class0/2\.jpg: "):
        evaluated(tmp_path / "out", run, tmp_path / "pictures")


def test_another_size_is_taken_where_the_model_can(run: Path, data: Path, tmp_path: Path) -> None:
    found = evaluated(tmp_path, run, data, "--image-size", "24")
    assert found["pictures"] == {"size": 24, "resize": 27, "interpolation": "bilinear"}


def test_checkpoints_without_class_names_are_taken_by_number(run: Path, data: Path, tmp_path: Path) -> None:
    """As those of earlier versions are."""
    shutil.copytree(run / "checkpoints", tmp_path / "checkpoints")
    for path in (tmp_path / "checkpoints").glob("step-*/manifest.json"):
        tree = json.loads(path.read_text())
        del tree["classes"], tree["checksum"]
        path.write_text(json.dumps(tree))
    found = evaluated(tmp_path / "out", tmp_path, data)
    assert found["remarks"] == ["the model's names for its classes are not known: taken in the data's order"]
    summary = json.loads((run / "summary.json").read_text())
    assert found["top1"] == summary["top1"]


def test_calibration_error_is_that_of_the_definition() -> None:
    generator = np.random.default_rng(5)
    confidence = np.concatenate([generator.uniform(0.2, 1.0, 500), np.arange(16) / 15])  # borders, too
    right = generator.random(516) < confidence**2
    expected = 0.0
    for m in range(1, 16):  # Guo et al. 2017: bin m is ((m - 1) / M, m / M]
        inside = [i for i, p in enumerate(confidence) if (m - 1) / 15 < p <= m / 15 or (m == 1 and p == 0)]
        if inside:
            accuracy, mean = np.mean(right[inside]), np.mean(confidence[inside])
            expected += len(inside) / 516 * abs(accuracy - mean)
    bins = calibration(confidence, right)
    assert sum(one.samples for one in bins) == 516
    labels = np.where(right, 0, 1)
    guesses = np.zeros((516, 2), dtype=np.int64)
    guesses[:, 1] = 1
    chances = np.stack([confidence, 1 - confidence], axis=1)
    found = measure(Outcome(guesses, chances, np.ones(516), {}), labels, 3)
    assert found.ece == pytest.approx(expected, abs=1e-12)
    assert (found.top5, found.recall(1), found.recall(2), found.precision(1)) == (100.0, 0.0, None, None)
    assert found.precision(0) == pytest.approx(100 * right.mean())


def test_of_many_classes_the_most_frequent_mistakes_are_shown() -> None:
    counts = np.eye(40, dtype=np.int64) * 10
    counts[7, 9], counts[3, 4] = 30, 2
    text = mistakes(Confusion(counts, [f"<{index}>" for index in range(40)]))
    assert text.index("&lt;7&gt;</td><td>&lt;9&gt;") < text.index("&lt;3&gt;</td><td>&lt;4&gt;")
    assert "75.0 %" in text
    assert text.count("<tr>") == 3  # a heading, and no more rows than mistakes


def test_worst_pictures_are_wrong_ones_by_their_loss() -> None:
    guesses = np.array([[0, 1], [1, 0], [1, 0], [0, 1]])
    found = Outcome(guesses, np.full((4, 2), 0.5), np.array([0.1, 2.0, 9.0, 3.0]), {})
    assert worst(found, np.array([0, 0, 1, 1]), 24) == [3, 1]  # the third has the highest loss, and is right
    assert worst(found, np.array([0, 0, 1, 1]), 1) == [3]


HOSTILE = "<b onload=alert(1)>&.jpg"


@pytest.fixture(scope="module")
def evaluation(
    fashion_run: Path, fashion_pictures: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], str]:
    """What evaluating says of 300 pictures, one of which has a hostile name, and the page."""
    folder = tmp_path_factory.mktemp("evaluation")
    pictures = shutil.copytree(fashion_pictures, folder / "pictures")
    next(iter((pictures / "n10000005").iterdir())).rename(pictures / "n10000005" / HOSTILE)
    return evaluated(folder / "out", fashion_run, pictures), (folder / "out" / "evaluation.html").read_text()


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)])
def test_page_in_a_browser(evaluation: tuple[dict[str, Any], str], tmp_path: Path, width: int, dark: bool) -> None:
    found, page = evaluation
    assert found["samples"] == 300
    assert "http" not in page.replace("http://www.w3.org", "")  # nothing is fetched from elsewhere
    assert HOSTILE not in page
    for said in (f"{found['top1']:.2f} %", "Calibration", "Confusion", "Worst images", CLASSES[0]):
        assert said in page, said
    shown = browser.show(page, tmp_path, width, dark)
    assert all(row["class"] != row["guess"] for row in found["worst"])
    assert page.count("predicted as ") >= MOST_IMAGES
    assert shown.inner == shown.scroll == width
    assert shown.images == MOST_IMAGES  # all of them are drawn
    assert shown.charts == 2
    assert shown.columns == (1 if width < 600 else 2)
    assert (shown.shot.mean() < 80) == dark
    assert all(block.std() > 2 for block in np.array_split(shown.shot[:2000], 5)), "a part of the page is blank"


def test_commands_of_the_page_in_docs_run(
    forker: Forker, fashion_run: Path, fashion_pictures: Path, tmp_path: Path
) -> None:
    """The block of docs/evaluate.md, with $RUN and $PICTURES as it describes them."""
    own = {"RUN": fashion_run, "PICTURES": fashion_pictures}
    pages.run(forker, "evaluate.md", "trainyard evaluate", cwd=tmp_path, **own)
    assert {path.name for path in (tmp_path / "build" / "evaluation").iterdir()} == {
        "result.json", "confusion.npz", "evaluation.html",
    }  # fmt: skip
    assert len((tmp_path / "build" / "predictions" / "predictions.jsonl").read_text().splitlines()) == 300
