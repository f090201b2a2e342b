"""The parts of a campaign (hack/campaign) that need no cluster: schedule, costs, page, and the run itself."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from hack.campaign import __main__ as campaign
from hack.campaign import cluster, costs, disturb, page
from hack.campaign.cluster import CommandError
from hack.campaign.costs import Cost
from hack.campaign.faults import DELETE, GONE, KILL, KINDS, STOP, Fault, draw
from hack.campaign.page import Measured, Row
from tests.charts import helm
from trainyard.config.useful_time import time_between_failures, useful_share

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


def train(*times: float) -> list[costs.Event]:
    return [{"event": "train", "time": time} for time in times]


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
    assert costs.goes_on(events, 11.5, 2)
    assert not costs.goes_on(events, 11.5, 3)
    assert costs.step_seconds(events) == 1.0
    # Those at the end, after the last fault, are faster
    events += train(*(15.0 + number / 100 for number in range(1, 100)))
    assert costs.useful(events, 15.0) == (4.0, 14.0, 1.0)


def test_the_page_shows_each_fault_and_what_follows_for_more_gpus() -> None:
    killed, hung = Fault("a rank is killed", 0, 0, 20), Fault("the file server hangs", 0, 30, 20)
    rows = [Row(killed, "pod-0", Cost(1.0, 30.0, 7, 1, 30.0), ""), Row(hung, "", Cost(None, None, 0, 0, 31.0), "waits")]
    text = page.render("Both", rows, Measured(60.0, 120.0, 0.01, 0.5, 0.0))
    assert "| a rank is killed | pod-0 | - | 1 s | 30 s | 7 | 1 | nothing |" in text
    assert "| the file server hangs |  | 30 s | - | not interrupted; longest step 31.0 s | 0 | 0 | waits |" in text
    assert "bit-equal" in text
    assert "60 of 120 s: 50.0 %" in text
    share = useful_share(time_between_failures(1024), 23.85, 0.01, 30.0)
    assert f"| 1,024 | 7.9 h | 24 s | {100 * share:.2f} % |" in text
    assert "by 0.002 at most" in page.render("Both", rows, Measured(60.0, 120.0, 0.01, 0.5, 2e-3))


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


def test_a_fault_that_fails_is_passed_over_and_two_end_the_campaign(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = iter([True, False, True, False, False, True])

    def perform(job: disturb.Job, fault: Fault, watch: cluster.Watch) -> Row:
        if not next(made):
            raise CommandError("no")
        return Row(fault, "", Cost(None, None, 0, 0, 1.0), "")

    mended: list[int] = []
    monkeypatch.setattr(disturb, "perform", perform)
    monkeypatch.setattr(disturb, "finished", lambda _: False)
    monkeypatch.setattr(disturb, "why", lambda _: "")
    monkeypatch.setattr(cluster, "pods", lambda *_: [])
    monkeypatch.setattr(cluster, "mend", lambda: mended.append(1))
    schedule = draw(1, 20, "trainjob")
    rows = campaign.make_faults(disturb.Job("space", "trainjob", "", 3), schedule, 0.0, tmp_path)
    assert [row.fault for row in rows] == [schedule[0], schedule[2]]
    assert len(mended) == 3 + 1  # and at the end


@pytest.mark.parametrize(
    ("operator", "kind"), [("pytorchjob", "PyTorchJob"), ("mpijob", "MPIJob"), ("trainjob", "TrainJob")]
)
def test_the_run_renders_with_each_operator(operator: str, kind: str) -> None:
    values = yaml.safe_load(disturb.VALUES.read_text())
    values["global"]["training"]["operator"] = operator
    values["global"]["image"] = {"registry": "registry.example.com/team", "tag": "0.1.0"}
    assert kind in [one["kind"] for one in helm.documents(helm.template(values))]


@pytest.mark.ranks(2)
def test_the_undisturbed_run_and_the_comparison_of_weights(tmp_path: Path) -> None:
    run = disturb.undisturbed(disturb.Job("", "pytorchjob", "", 3), tmp_path)
    other = shutil.copytree(run, tmp_path / "other")
    assert disturb.difference(run, other) == 0
    import torch

    weights = torch.load(other / "published/model.pth", weights_only=True)
    next(iter(weights.values())).view(-1)[0] += 1e-3
    torch.save(weights, other / "published/model.pth")
    assert disturb.difference(run, other) == pytest.approx(1e-3, rel=1e-2)


def test_a_schedule_may_be_of_some_kinds_alone() -> None:
    some = ("a rank is killed", "a node dies for good")
    schedule = draw(1, 6, "pytorchjob", some)
    assert [{fault.kind for fault in schedule[at : at + 2]} for at in (0, 2, 4)] == [set(some)] * 3
