"""A Prometheus finds the run's pods by their annotations, and at the end its values equal those of the run directory.

Debian builds Prometheus without kubernetes_sd, so a thread of this file writes what it would find: the pods that the
API server has, with the same meta labels. The relabelling is that of deploy/prometheus/scrape.yaml.
"""

import contextlib
import functools
import json
import os
import re
import threading
import time
from pathlib import Path

import pytest
import yaml

from hack.dashboard.panels import panels
from hack.dashboard.server import running
from tests import ports
from tests.e2e import cluster
from tests.e2e.cluster import get, lines, until
from trainyard.cluster.errors import KubeError

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(4), pytest.mark.takes(60)]
RELEASE = "watched"
STEPS = 200  # of 32 small pictures: as many as Prometheus, which looks once a second, needs to see several lines
SETTINGS = [
    "--set", "mpijob.enabled=false,pytorchjob.enabled=true",
    "--set", "global.metrics.enabled=true",
    "--set", "global.training.processesPerNode=1",
    "--set", f"global.training.config.max_steps={STEPS},global.training.config.batch.global=32",
    "--set", "global.training.config.checkpoint.every_steps=100",
]  # fmt: skip
DEPLOY = cluster.ROOT / "deploy"
# Panels that may be empty, and why
EMPTY = {"Alerts": "nothing is wrong with the run"}


def scraping(pods: Path) -> list[dict]:
    """The scrape config that users have, but that pods are found in a file."""
    (job,) = yaml.safe_load((DEPLOY / "prometheus" / "scrape.yaml").read_text())["scrape_configs"]
    assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
    return [{**job, "file_sd_configs": [{"files": [str(pods)]}]}]


def meta(pod: dict) -> dict[str, str]:
    """The labels that kubernetes_sd gives a pod: https://prometheus.io/docs/prometheus/latest/configuration/."""
    about, plain = pod["metadata"], functools.partial(re.sub, r"[^a-zA-Z0-9_]", "_")
    labels = {"namespace": about["namespace"], "pod_name": about["name"], "pod_phase": pod["status"]["phase"]}
    labels |= {f"pod_label_{plain(key)}": value for key, value in about.get("labels", {}).items()}
    labels |= {f"pod_annotation_{plain(key)}": value for key, value in about.get("annotations", {}).items()}
    return {f"__meta_kubernetes_{key}": value for key, value in labels.items()}


def discover(namespace: str, path: Path, over: threading.Event) -> None:
    """Keep a file of the namespace's pods current."""
    while not over.wait(1):
        with contextlib.suppress(KubeError):  # no answer now: kubernetes_sd would ask again, too
            path.with_suffix(".part").write_text(json.dumps(places(get("pods", namespace))))
            path.with_suffix(".part").rename(path)


def places(pods: list[dict]) -> list[dict]:
    """Return what Prometheus may scrape: each port of each container, or the pod where it has none."""
    found = []
    for pod in pods:
        if address := pod["status"].get("podIP"):
            ports = [port for one in pod["spec"]["containers"] for port in one.get("ports", [{}])]
            ways = [f"{address}:{port['containerPort']}" if port else address for port in ports]
            found.append({"targets": ways, "labels": meta(pod)})
    return found


@pytest.fixture(scope="module")
def pods(namespace, tmp_path_factory):
    """A file of the namespace's pods that is kept current."""
    path, over = tmp_path_factory.mktemp("discovery") / "pods.json", threading.Event()
    thread = threading.Thread(target=discover, args=(namespace, path, over))
    thread.start()
    yield path
    over.set()
    thread.join()


def beside_the_pods() -> tuple[list[str], str]:
    """How a program is started in the node's network, which alone reaches pods, and its address there."""
    state = Path(os.environ.get("TRAINYARD_STATE", "/var/lib/trainyard"))
    address = os.environ.get("TRAINYARD_NODE_IP", "10.90.0.2")
    return ["nsenter", "-t", (state / "run" / "node.pid").read_text().strip(), "-n", "--"], address


def trainers(namespace: str) -> set[str]:
    """Identity of each training pod of the release, one that has ended included."""
    return {pod["metadata"]["uid"] for pod in get("pods", namespace, "app.kubernetes.io/name=pytorchjob")}


@pytest.fixture(scope="module")
def seen(namespace, pods, archive, install, tmp_path_factory):
    """Train under a Prometheus, through an upgrade that changes metrics; yields what all tests look at."""
    if not cluster.OWN:
        pytest.skip("pods of another cluster cannot be reached from here")
    folder = tmp_path_factory.mktemp("metrics")
    rules = folder / "rules.yaml"
    rules.write_text((DEPLOY / "prometheus" / "rules.yaml").read_text().replace("interval: 30s", "interval: 1s"))
    within, address = beside_the_pods()
    with running(
        folder / "prometheus", scraping(pods), [rules], within=within, address=address, port=ports.free()
    ) as server:
        began = time.time()
        install(RELEASE, namespace, *SETTINGS)
        until("the run's first step", lambda: server.query("trainyard_step > 0"))
        found = get("pods", namespace, "app.kubernetes.io/name=pytorchjob")
        targets = server.get("targets")["activeTargets"], {pod["metadata"]["name"] for pod in found}
        before = trainers(namespace)
        install(RELEASE, namespace, *SETTINGS, "--set", "global.metrics.port=9500")
        firing = [rule for group in server.get("rules")["groups"] for rule in group["rules"]]
        cluster.follow(RELEASE, namespace)
        cluster.run("trainyard", "fetch", RELEASE, f"runs/{RELEASE}", folder / "run", "-n", namespace)
        # the operator may have deleted the Worker that was still at its end when the Master had ended
        assert before, "there were no pods"
        assert trainers(namespace) <= before, "another port for metrics has restarted pods"
        yield server, folder / "run", (began, time.time()), targets, firing


def last(seen, name: str, **labels: str) -> float:
    """The last value that Prometheus holds of a series."""
    server, _, (began, ended), *_ = seen
    selector = ", ".join(f'{key}="{value}"' for key, value in {"run": RELEASE, **labels}.items())
    found = server.query(f"last_over_time({name}{{{selector}}}[{int(ended - began) + 60}s])")
    (value,) = [value for _, value in found]
    return value


def test_each_node_is_a_target_that_answers(seen, namespace):
    server, _, span, (targets, pods), _ = seen
    assert {target["labels"]["namespace"] for target in targets} == {namespace}
    assert {target["labels"]["pod"] for target in targets} <= pods
    answered = {labels["pod"] for labels, _ in server.matrix("up == 1", *span)}
    assert len(answered) == 2
    nodes = [labels for labels, _ in server.matrix("trainyard_node_info", *span)]
    assert {labels["rank"] for labels in nodes} == {"0", "1"}
    assert all(labels["host"] == labels["pod"] for labels in nodes)
    first = {labels["pod"] for labels in nodes if labels["rank"] == "0"}
    assert {labels["pod"] for labels, _ in server.matrix("trainyard_step", *span)} == first


def test_the_last_numbers_are_those_of_the_run_directory(seen):
    """Though the run ends seconds after its last validation: it waits until they were fetched."""
    _, run, *_ = seen
    summary = json.loads((run / "summary.json").read_text())
    events = lines(run / "metrics.jsonl")
    train = [event for event in events if event["event"] == "train"][-1]
    assert (summary["status"], summary["steps"]) == ("finished", STEPS)
    assert last(seen, "trainyard_step") == STEPS == last(seen, "trainyard_steps_planned")
    assert last(seen, "trainyard_loss") == pytest.approx(train["loss"])
    assert last(seen, "trainyard_learning_rate") == pytest.approx(train["lr"])
    assert last(seen, "trainyard_samples") == summary["samples"]
    assert last(seen, "trainyard_validation_top1_percent") == pytest.approx(summary["top1"])
    assert last(seen, "trainyard_validation_top5_percent") == pytest.approx(summary["top5"])
    checkpoint = [event for event in events if event["event"] == "checkpoint"][-1]
    assert last(seen, "trainyard_last_checkpoint_timestamp_seconds") == checkpoint["time"]
    for cause, seconds in summary["seconds"].items():
        assert last(seen, "trainyard_run_seconds", cause=cause) == pytest.approx(seconds, abs=0.002)
        assert last(seen, "trainyard_goodput_seconds_total", cause=cause) == pytest.approx(seconds, abs=0.05)
    for rank in summary["ranks"]:
        for part, seconds in rank["seconds"].items():
            found = last(seen, "trainyard_rank_seconds_total", rank=str(rank["rank"]), host=rank["host"], part=part)
            assert found == pytest.approx(seconds, abs=0.002)


def test_prometheus_holds_every_line_that_it_came_to_see(seen):
    server, run, span, *_ = seen
    written = {event["step"]: event["loss"] for event in lines(run / "metrics.jsonl") if event["event"] == "train"}
    (steps,) = [dict(points) for _, points in server.matrix(f'trainyard_step{{run="{RELEASE}"}}', *span)]
    (losses,) = [dict(points) for _, points in server.matrix(f'trainyard_loss{{run="{RELEASE}"}}', *span)]
    pairs = {(int(steps[at]), losses[at]) for at in steps}
    assert len(pairs) >= 4
    assert all(written[step] == pytest.approx(loss) for step, loss in pairs)


def test_the_alert_rules_are_loaded_and_evaluated(seen):
    *_, rules = seen
    assert len([rule for rule in rules if rule["type"] == "alerting"]) == 7
    for rule in rules:
        assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), rule["name"]
        assert rule["lastEvaluation"] > "2026"
        assert rule.get("state") != "firing", rule


def test_every_query_of_the_dashboard_finds_the_run(seen, namespace):
    server, _, span, *_ = seen
    values = {"namespace": namespace, "run": RELEASE, "__rate_interval": "10s"}
    for panel in panels(values):
        for target in panel.targets:
            found = server.matrix(target.expression, *span)
            without = panel.title in EMPTY or "DCGM_" in target.expression
            assert found or without, f"{panel.title}: {target.expression}"
    assert len(panels(values)) == 25
