"""Predictions: CSV and JSON lines, of pictures with and without class folders, and what becomes of broken ones."""

import csv
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from conftest import Trainer, picture

from tests import patience
from trainyard.core.exits import UserError
from trainyard.inference import predict

pytestmark = [pytest.mark.takes(30), pytest.mark.ranks(2)]


@pytest.fixture(scope="module")
def run(session_trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return session_trainer.train(tmp_path_factory.mktemp("predicting") / "run", epochs=6)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Pictures of four classes in one folder, two that cannot be decoded, and what is no picture."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02d} of class{number % 4}.jpg").write_bytes(picture(number % 4, number + 500))
    (folder / "cut.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut")
    (folder / "old.gif").write_bytes(b"GIF89a")
    (folder / "notes.txt").write_text("no picture")
    return folder


def predicted(out: Path, run: Path, data: Path, *more: str) -> list[dict[str, Any]]:
    """What predicting writes as JSON lines, in this process."""
    assert predict.main(["--model", str(run), "--data", str(data), "--out", str(out), "--device", "cpu", *more]) == 0
    return [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]


def test_both_files_say_what_is_on_each_picture(
    run: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = predicted(tmp_path / "out", run, pictures)
    assert [line["name"] for line in lines] == sorted(path.name for path in pictures.iterdir() if path.suffix != ".txt")
    whole = [line for line in lines if "error" not in line]
    assert len(whole) == 12
    right = 0
    for line in whole:
        chances = [one["probability"] for one in line["top"]]
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) == pytest.approx(1, abs=1e-5)  # all four classes are there
        assert all(one["class"] == f"class{one['index']}" for one in line["top"])
        right += line["top"][0]["class"] in line["name"]
    assert right >= 6  # a quarter would be chance
    assert {line["name"] for line in lines if "error" in line} == {"cut.jpg", "old.gif"}
    output = capsys.readouterr().out
    assert "predict: cut.jpg: an image cannot be decoded" in output
    assert "old.gif: an image cannot be decoded (it is neither a JPEG nor a PNG; convert it)" in output
    assert "12 images, 2 could not be decoded" in output

    rows = list(csv.DictReader((tmp_path / "out" / "predictions.csv").open(newline="")))
    assert [row["name"] for row in rows] == [line["name"] for line in lines]
    for row, line in zip(rows, lines, strict=True):
        assert row["error"] == line.get("error", "")
        if "top" in line:
            assert row["class_1"] == line["top"][0]["class"]
            assert float(row["probability_4"]) == line["top"][3]["probability"]


def test_top_and_zips(run: Path, pictures: Path, tmp_path: Path) -> None:
    whole = predicted(tmp_path / "out", run, pictures)
    with zipfile.ZipFile(tmp_path / "some.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(pictures.iterdir()):
            archive.write(path, f"some/{path.name}")
    lines = predicted(tmp_path / "out", run, tmp_path / "some.zip", "--top", "2")
    assert [line["name"] for line in lines] == [f"some/{line['name']}" for line in whole]
    for line, other in zip(lines, whole, strict=True):
        assert line.get("top") == (other["top"][:2] if "top" in other else None)


def test_a_damaged_member_of_a_zip_is_one_picture_less(run: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        for number in range(3):
            archive.writestr(f"{number}.jpg", picture(0, number))
    content = (tmp_path / "some.zip").read_bytes()
    at = content.index(picture(0, 1)) + 100
    (tmp_path / "some.zip").write_bytes(content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :])
    lines = predicted(tmp_path / "out", run, tmp_path / "some.zip")
    assert [line.get("error", "")[:40] for line in lines if "error" in line] == [
        f"1.jpg in {tmp_path / 'some.zip'}"[:40]
    ]


def test_no_picture_at_all_is_an_error(run: Path, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "1.jpg").write_bytes(b"")
    (tmp_path / "pictures" / "2.png").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"(?s)none of the 2 images can be decoded:\n1\.jpg: .*\n2\.png: "):
        predicted(tmp_path / "out", run, tmp_path / "pictures")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="--top 0: at least 1"):
        predicted(tmp_path / "out", run, tmp_path / "pictures", "--top", "0")


def test_two_processes_write_the_same(trainer: Trainer, run: Path, pictures: Path, tmp_path: Path) -> None:
    alone = predicted(tmp_path / "alone", run, pictures, "--batch", "4")
    process = trainer.python(
        "-m", "trainyard", "launch", "--nproc-per-node", "2", "-m", "trainyard", "predict", "--model", str(run),
        "--data", str(pictures), "--out", str(tmp_path / "both"), "--batch", "4", "--device", "cpu",
    )  # fmt: skip
    output, _ = patience.communicate(process)
    assert process.returncode == 0, output
    for name in ("predictions.jsonl", "predictions.csv"):
        assert (tmp_path / "both" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    assert len(alone) == 14
