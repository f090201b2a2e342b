"""A run from the first command to the last, init to delete, as docs/command-line.md has them.

They run in an empty folder, by a machine that has the package with its requirements, the packed chart, helm and
kubectl: no checkout.
"""

import json
import subprocess
import threading
from pathlib import Path

import pytest
import yaml

from tests import documents, patience
from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(2), pytest.mark.takes(60)]
RELEASE, STEPS = "run", 12
IMAGES = 2800  # of the archive
SMALL = {
    "global": {"training": {"config": {"max_steps": STEPS, "log": {"every_steps": 4}}}},
    "dataset": {"resources": {"requests": {"cpu": "100m", "memory": "256Mi"}}},
}


class Told:
    """What the commands of the page printed, by name, and each state of the runs meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: dict[str, subprocess.CompletedProcess[str]] = {}
        self.states: list[list[dict]] = []
        self.awaited = threading.Event()  # a run waits for its dataset
        tools = folder / "bin"
        tools.mkdir()
        for name in ("helm", "kubectl"):
            (tools / name).symlink_to(cluster.ROOT / "build" / "bin" / name)
        install_package(folder / "package")
        cluster.helm("package", "charts/trainyard", "-d", folder)
        (chart,) = folder.glob("*.tgz")
        self.env = {key: value for key, value in cluster.ENV.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self.env |= {"PATH": f"{folder}/package/bin:{tools}:/usr/bin:/bin", "TRAINYARD_CHART": str(chart)}

    def run(self, line: str) -> "subprocess.CompletedProcess[str]":
        """Run a line of the page; again where a busy API server has not taken its connection."""
        for _ in range(cluster.TRIES):
            done = patience.run(["bash", "-euc", line], None, cluster.stirring, cwd=self.folder, env=self.env)
            if done.returncode == 0 or not cluster.NOT_TAKEN.search(done.stderr):
                break
        return done

    def watch(self, namespace: str) -> "subprocess.Popen[str]":
        """Keep each state of the runs of a namespace, until the process is killed."""
        command = ["trainyard", "runs", "-n", namespace, "--watch", "--json"]
        process = subprocess.Popen(command, env=self.env, text=True, stdout=subprocess.PIPE)

        def read() -> None:
            for line in process.stdout or ():
                self.states.append(json.loads(line))
                if "Waiting" in [one["state"] for one in self.states[-1] if one["kind"] == "pytorchjob"]:
                    self.awaited.set()

        threading.Thread(target=read, daemon=True).start()
        return process

    def hold_archive(self, namespace: str) -> None:
        """Hide the archive's server until a run waits for its dataset, which may be there first on a fast machine."""

        def show() -> None:
            self.awaited.wait()
            kubectl("label", "pod", "archive", "app=archive", "--overwrite", "-n", namespace)

        kubectl("label", "pod", "archive", "app=held", "--overwrite", "-n", namespace)
        threading.Thread(target=show, daemon=True).start()

    def seen(self, kind: str) -> list[dict]:
        """Return the states that a kind of job went through."""
        return [one for rows in self.states for one in rows if one["kind"] == kind]


def install_package(folder: Path) -> None:
    """Make an environment with the wheel of this tree and what it requires, in locked versions; no trainers' extras."""
    uv = cluster.run("hack/bootstrap", "--uv").stdout.strip()
    place = f"UV_PROJECT_ENVIRONMENT={folder}"
    cluster.run("env", "-u", "VIRTUAL_ENV", place, uv, "sync", "-q", "--frozen", "--no-dev", "--no-editable")
    assert not list(folder.glob("lib/*/site-packages/torch")), "the commands about a release need no torch"


@pytest.fixture(scope="module")
def told(namespace, archive, image, tmp_path_factory) -> Told:
    """The page's commands, run one after the other with the demo's data and few steps."""
    found = Told(tmp_path_factory.mktemp("command-line"))
    small = "--nodes 1 --processes-per-node 2 --cpu 100m --memory 512Mi --data-size 1Gi --results-size 1Gi"
    own = {
        "https://data.example.com/pets.zip": archive,
        "--nodes 2 --gpus-per-node 8": f"{small} --layout imagenet --registry {image['registry']} --tag {image['tag']}",
        "-f trainyard.yaml": "-f trainyard.yaml -f small.yaml",
        "trainyard doctor": "trainyard doctor --seconds 600",  # a busy machine starts its probes late
        "-n vision": f"-n {namespace}",
    }
    (found.folder / "small.yaml").write_text(yaml.safe_dump(SMALL))
    watcher = found.watch(namespace)
    try:
        for line in documents.text("command-line.md", "trainyard init", own).splitlines():
            _, name, *_ = line.split()
            if name == "up":
                found.hold_archive(namespace)
            found.said[name] = found.run(line)
            assert found.said[name].returncode == 0, f"{line}\n{found.said[name].stdout}\n{found.said[name].stderr}"
            if name == "up":
                watcher.kill()
    finally:
        watcher.kill()
    return found


def test_init_writes_what_up_installs(told):
    values = yaml.safe_load((told.folder / "trainyard.yaml").read_text())
    assert values["dataset"]["source"]["url"] == "http://archive/fashion.zip"
    assert values["global"]["dataset"]["name"] == "fashion"


def test_doctor_finds_nothing_that_would_stop_it(told):
    said = told.said["doctor"].stdout
    assert "nothing would stop the run of trainyard.yaml, small.yaml" in said
    assert "ok       admission" in said


def test_follow_and_why_tell_of_a_run_that_has_ended(told):
    assert [line.split()[-1] for line in told.said["follow"].stdout.splitlines()] == ["Complete", "Succeeded"]
    assert "remedy:" not in told.said["why"].stdout
    assert "pytorchjob/" in told.said["why"].stdout


def test_up_follows_to_the_end(told):
    lines = told.said["up"].stdout.splitlines()
    assert any("pytorchjob/" in line and line.endswith("Succeeded") for line in lines), lines
    assert any("job/" in line and line.endswith("Complete") for line in lines), lines


def test_runs_tell_states_and_numbers_as_they_change(told):
    states = [one["state"] for one in told.seen("pytorchjob")]
    assert "Waiting" in states, states  # for the dataset
    assert "Running" in states
    assert "Running" in [one["state"] for one in told.seen("dataset")]
    assert {one["steps"] for one in told.seen("dataset")} & {None, IMAGES}


def test_runs_show_the_result(told):
    (line,) = [line for line in told.said["runs"].stdout.splitlines() if " pytorchjob " in line]
    cells = line.split()
    assert cells[:5] == [RELEASE, "pytorchjob", "1x2", "Succeeded", f"{STEPS}/{STEPS}"]
    top1, rate, goodput, percent = cells[5:]  # nothing is left, and there are no GPUs
    assert 0 < float(top1) <= 100
    assert float(rate.replace(",", "")) > 0
    assert 0 < int(goodput) <= 100, percent
    (prepared,) = [line for line in told.said["runs"].stdout.splitlines() if " dataset " in line]
    assert f"{IMAGES}/{IMAGES}" in prepared


def test_logs_are_those_of_rank_0(told):
    text = told.said["logs"].stdout
    assert f"step {STEPS}/{STEPS}  epoch" in text
    assert "finished: top1" in text


def test_the_report_is_the_runs_own(told):
    page = told.folder / told.said["report"].stdout.strip()
    assert page == told.folder / f"{RELEASE}-report" / "report.html"
    text = page.read_text()
    assert "finished" in text
    assert f"{STEPS}" in text
    assert not (page.parent / "checkpoints").exists()


def test_delete_keeps_the_claims_and_data_goes_when_said_twice(told, namespace):
    kept = told.said["delete"].stdout
    names = {"run-data", "run-results"}
    assert all(f"claim {name} (1Gi): kept" in kept for name in names), kept
    assert {one["metadata"]["name"] for one in get("pvc", namespace)} >= names
    assert get("pytorchjobs.kubeflow.org", namespace) == []
    gone = told.run(f"trainyard delete {RELEASE} -n {namespace}")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "release: not found" in gone.stderr
    again = told.run(f"trainyard delete {RELEASE} -n {namespace} --data --yes-delete-data --json")
    assert again.returncode == 0, again
    assert {one["name"] for one in json.loads(again.stdout)["deleted"]} == names
    assert names.isdisjoint(one["metadata"]["name"] for one in get("pvc", namespace))
