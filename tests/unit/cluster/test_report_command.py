"""`trainyard report`: which run is meant, what is fetched of it, and the page of a run that has not ended."""

import json
from pathlib import Path

import pytest

from tests.charts import helm
from trainyard.cluster import fetch, report
from trainyard.cluster.errors import KubeError

START = {
    "event": "start",
    "step": 0,
    "epoch": 1,
    "time": 1.0,
    "started": 0.0,
    "world_size": 2,
    "steps": 9,
    "classes": 3,
}
TRAIN = {"event": "train", "step": 1, "epoch": 1, "time": 2.0, "loss": 1.25, "lr": 0.1, "images_per_second": 100.0}


def args(*more: str):
    return report.parser().parse_args(["run", "-n", "vision", *more])


def put_settings(cluster, *settings: str) -> None:
    """Put the ConfigMaps of a release on the server, as the chart makes them."""
    values = helm.merged(helm.everything(), *({"global": {"training": {"operator": one}}} for one in settings))
    for document in helm.documents(helm.template(values, release="run")):
        if document["kind"] == "ConfigMap":
            document["metadata"]["uid"] = document["metadata"]["name"]
            cluster.put("configmaps", document)


@pytest.mark.parametrize("operator", ["pytorchjob", "mpijob", "trainjob"])
def test_the_one_run_of_a_release_is_meant(here, operator):
    put_settings(here, operator)
    assert report.chosen(args()) == "runs/run"
    assert report.chosen(args("--run", "seed-2")) == "runs/seed-2"


def test_of_several_runs_one_must_be_named(here):
    put_settings(here)
    with pytest.raises(
        KubeError, match="has several runs: name one by --run: run-mpijob, run-pytorchjob, run-trainjob"
    ):
        report.chosen(args())


def test_a_release_that_trains_nothing_is_told(here):
    with pytest.raises(KubeError, match="has no training job in namespace vision: name a run by --run"):
        report.chosen(args())


@pytest.fixture
def run(tmp_path) -> Path:
    """A run directory as it lies on a claim."""
    folder = tmp_path / "claim" / "runs" / "run"
    (folder / "checkpoints" / "step-1").mkdir(parents=True)
    (folder / "checkpoints" / "step-1" / "weights").write_text("gigabytes")
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in (START, TRAIN)))
    return folder


def fetched(run: Path, to: Path) -> str:
    """Copy a run directory as the pod sends it; return what went wrong."""
    to.mkdir(exist_ok=True)
    return fetch.unpack(["sh", "-c", report.SEND, str(run)], {}, to)


def test_the_page_and_its_records_are_fetched_and_no_weights(run, tmp_path):
    (run / "report.html").write_text("the page")
    (run / "validation").mkdir()
    (run / "validation" / "confusion.npz").write_text("numbers")
    assert fetched(run, tmp_path / "here") == ""
    names = {str(path.relative_to(tmp_path / "here")) for path in (tmp_path / "here").rglob("*") if path.is_file()}
    assert names == {"report.html", "metrics.jsonl", "validation/confusion.npz"}
    assert report.page(tmp_path / "here").read_text() == "the page"


def test_the_page_of_a_run_that_has_not_ended_is_written_here(run, tmp_path):
    assert fetched(run, tmp_path / "here") == ""
    text = report.page(tmp_path / "here").read_text()
    assert "1.25" in text
    assert "running" in text


def test_a_run_without_records_is_told(run, tmp_path):
    (run / "metrics.jsonl").unlink()
    assert "has recorded nothing yet" in fetched(run, tmp_path / "here")
    assert "has recorded nothing yet" in fetched(run / "nowhere", tmp_path / "here")
    with pytest.raises(KubeError, match="holds no run"):
        report.page(tmp_path / "here")


def test_a_copy_that_is_cut_off_is_noticed(run, tmp_path):
    (tmp_path / "here").mkdir()
    cut = report.SEND.partition(fetch.SENT)[0]
    assert fetch.unpack(["sh", "-c", cut, str(run)], {}, tmp_path / "here") == fetch.CUT_OFF
