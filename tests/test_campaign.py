"""The parts of a campaign (hack/campaign) that need no cluster: schedule, costs, and the run itself."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from forked import shared

from hack.campaign import cluster, costs, disturb
from hack.campaign.cluster import CommandError
from hack.campaign.costs import Cost
from hack.campaign.faults import DELETE, GONE, KILL, KINDS, STOP, Fault, draw, short
from tests.charts import helm

ROOT = Path(__file__).resolve().parents[1]


def test_a_seed_draws_one_schedule_in_which_each_kind_comes_before_one_comes_again() -> None:
    schedule = draw(1, 40, "pytorchjob")
    assert schedule == draw(1, 40, "pytorchjob") != draw(2, 40, "pytorchjob")
    kinds = [fault.kind for fault in schedule]
    assert len(schedule) == 40
    assert len(set(kinds[:20])) == len(set(kinds[: len(KINDS)])) == len(KINDS) >= 10
    for fault in schedule:
        least, most = KINDS[fault.kind].seconds
        assert least <= fault.seconds <= most
    assert all(fault.kind in KINDS for fault in short())
    # hack/cluster/fault has no such operator
    assert "the operator is down" not in [fault.kind for fault in draw(1, 40, "trainjob")]


def test_each_fault_is_one_that_the_cluster_can_have() -> None:
    usage = (ROOT / "hack/cluster/fault").read_text()
    known = re.findall(r"^#   (kill|cut|slow|drain|storage|down) ?(NODE)? ?([a-z|]*)", usage, re.MULTILINE)
    for kind in KINDS:
        words = Fault(kind, 0, 0, 0).words("trainyard-2", "mpijob")
        if KINDS[kind].words in (KILL, STOP, DELETE, GONE):
            assert not words
        elif words != ["down", "mpi-operator"]:
            place = [word.replace("trainyard-2", "NODE") for word in words]
            assert any(place[0] == name and set(place[1:]) & {of, *what.split("|")} for name, of, what in known), words


def train(*times: float, first: int = 1) -> list[costs.Event]:
    return [{"event": "train", "time": time, "step": step} for step, time in enumerate(times, first)]


def start(time: float) -> list[costs.Event]:
    resume = {"event": "resume", "time": time + 2, "lost_steps": 7}
    return [{"event": "start", "started": time, "time": time + 2}, resume]


def test_what_a_fault_costs_that_interrupts_the_run() -> None:
    events = [*start(1.0), *train(10.0, 11.0), *start(25.0), *start(40.0), *train(50.0, 51.0, 52.0)]
    assert costs.cost(events, 11.5, 52.0, [5.0, 20.5, 30.0]) == Cost(9.0, 38.5, 14, 2, 38.5)
    # restarted in place: no pod has ended
    assert costs.cost(events, 11.5, 52.0, []).found == 13.5
    # an elastic run stops again to take a node back: what it trained in between counts
    events += [*start(60.0), *train(64.0)]
    assert costs.cost(events, 11.5, 65.0, []).away == 38.5 + (64.0 - 52.0)


def test_what_a_fault_costs_that_does_not() -> None:
    events = [*start(1.0), *train(10.0, 11.0, 14.5, 15.0)]
    assert costs.cost(events, 11.5, 15.0, [12.0]) == Cost(None, None, 0, 0, 3.5)
    assert costs.cost(events, 11.5, 300.0, []).pause == 285.0  # it hangs
    assert costs.goes_on(events, 11.5, 2)
    assert not costs.goes_on(events, 11.5, 3)
    assert costs.step_seconds(events) == 1.0
    # Those at the end, after the last fault, are faster
    events += train(*(15.0 + number / 100 for number in range(1, 100)), first=5)
    assert costs.useful(events, 15.0) == (4.0, 14.0, 1.0)


def test_steps_that_a_peer_made_again_are_not_kept_twice() -> None:
    events = [*start(0.0), *train(1.0, 2.0, 3.0, 4.0), *start(8.0), *train(9.0, 10.0, first=2)]
    assert costs.useful(events, 10.0) == (3.0, 10.0, 1.0)  # until then it has not made the fourth again


def test_what_is_half_undone_is_undone_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, ...]] = []

    def fault(*words: str) -> str:
        done.append(words)
        if done == [("--undo",)]:
            raise CommandError("the node did not start")
        return "kill trainyard-2\nstorage full\n" if words == ("--list",) else ""

    def kubectl(*_: str) -> str:
        raise CommandError('error: taint "node.kubernetes.io/out-of-service" not found')

    monkeypatch.setattr(cluster, "fault", fault)
    monkeypatch.setattr(cluster, "kubectl", kubectl)
    cluster.mend()
    assert done == [("--undo",), ("--list",), ("kill", "trainyard-2"), ("--undo",)]


def test_a_peer_has_the_pods_and_tolerations_of_our_run() -> None:
    values = yaml.safe_load(disturb.VALUES.read_text())["global"]
    text = disturb.peer_manifest(disturb.Job("", "pytorchjob", "0.1.0-abc", 3, peer="steps"))
    claim, job = yaml.safe_load_all(text)
    assert claim["metadata"]["name"] == f"{disturb.RELEASE}-results"  # as cluster.run_folder looks for it
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert worker["replicas"] == values["training"]["nodes"]
    pod = worker["template"]["spec"]
    assert pod["tolerations"] == values["scheduling"]["tolerations"]
    (container,) = pod["containers"]
    assert container["image"] == "localhost/trainyard-pytorch:0.1.0-abc"
    assert container["resources"] == values["training"]["resources"]
    assert container["args"][:2] == ["/paced/peer.py", f"/results/runs/{disturb.RELEASE}"]
    assert container["args"][-4:] == ["--epoch-steps", str(disturb.EPOCH), "--save-steps", "100"]


@pytest.mark.ranks(2)
def test_a_peer_resumes_at_its_checkpoint_and_says_what_it_repeats(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(disturb.HERE), "OMP_NUM_THREADS": "1", "PACE": "0"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    program = ["-m", "peer", str(tmp_path), "--resume", "--epoch-steps=6"]

    def events(*words: str) -> list[costs.Event]:
        done = shared().run([*torchrun, *program, *words], env=env)
        assert done.returncode == 0, done.stderr
        return cluster.read_lines(tmp_path / "metrics.jsonl")

    assert [event["step"] for event in costs.of_kind(events("--epochs=1"), "train")] == [1, 2, 3, 4, 5, 6]
    with (tmp_path / "metrics.jsonl").open("a") as file:  # it was killed in its second epoch
        file.write('{"event": "train", "time": 1.0, "step": 11}\n{"event": "tra')
    found = events("--epochs=2", "--save-steps=4")
    assert [(event["step"], event["lost_steps"]) for event in costs.of_kind(found, "resume")] == [(0, 0), (6, 5)]
    assert [event["step"] for event in costs.of_kind(found, "checkpoint")] == [6, 10, 12]
    assert found[-1]["step"] == 12
    assert len(costs.of_kind(found, "start")) == 2  # its line is whole after one that was cut


@pytest.mark.parametrize(
    ("operator", "kind"), [("pytorchjob", "PyTorchJob"), ("mpijob", "MPIJob"), ("trainjob", "TrainJob")]
)
def test_the_run_renders_with_each_operator(operator: str, kind: str) -> None:
    values = yaml.safe_load(disturb.VALUES.read_text())
    values["global"]["training"]["operator"] = operator
    values["global"]["image"] = {"registry": "registry.example.com/team", "tag": "0.1.0"}
    assert kind in [one["kind"] for one in helm.documents(helm.template(values))]


@pytest.mark.ranks(2)
def test_the_undisturbed_run_and_the_comparison_of_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturb.subprocess, "run", lambda args, check, **options: shared().run(args, **options))
    run = disturb.undisturbed(disturb.Job("", "pytorchjob", "", 3), tmp_path)
    other = shutil.copytree(run, tmp_path / "other")
    assert disturb.difference(run, other) == 0
    import torch

    weights = torch.load(other / "published/model.pth", weights_only=True)
    next(iter(weights.values())).view(-1)[0] += 1e-3
    torch.save(weights, other / "published/model.pth")
    assert disturb.difference(run, other) == pytest.approx(1e-3, rel=1e-2)
