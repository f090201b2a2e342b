"""Alert rules have one source: the chart builds its PrometheusRule from the file that Prometheus loads."""

import os
import re
import subprocess
from pathlib import Path

import yaml

from hack.dashboard.server import program
from tests import documents

from . import helm

RULES = helm.ROOT / "deploy" / "prometheus" / "rules.yaml"
WATCHED = helm.at("global.metrics", {"enabled": True, "rules": {"enabled": True}})
RUNS = r'run=~"demo-pytorchjob|demo-mpijob|demo-trainjob"'


def alerts() -> list[dict]:
    """The rules of the file."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return group["rules"]


def run(command: str) -> str:
    """What a command of promtool's says, run at the project's root; it must be content."""
    name, *arguments = command.split()
    done = subprocess.run([program(name), *arguments], cwd=helm.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_rules_and_their_tests():
    path = f"{Path(program('promtool')).parent}:{os.environ['PATH']}"
    said = documents.run("metrics.md", "promtool check", PATH=path).stdout
    assert "9 rules found" in said
    assert "SUCCESS" in said.partition("9 rules found")[2]


def test_each_alert_fires_in_one_of_promtools_tests_and_its_neighbour_does_not():
    cases = yaml.safe_load(RULES.with_name("rules_test.yaml").read_text())["tests"]
    names = {rule["alert"] for rule in alerts() if "alert" in rule}
    assert len(cases) == len(names) == 7
    for case in cases:
        (name,) = {one["alertname"] for one in case["alert_rule_test"]}
        names.remove(name)
        fired = {alert["exp_labels"]["run"] for one in case["alert_rule_test"] for alert in one["exp_alerts"]}
        runs = set(re.findall(r'run="(\w+)"', str(case["input_series"])))
        assert fired, name
        assert runs - fired, name


def test_the_chart_renders_the_files_rules_for_its_own_runs():
    made = helm.only(helm.template(helm.merged(helm.everything(), WATCHED)), "PrometheusRule")
    (group,) = made["spec"]["groups"]
    wanted = [{**rule, "expr": rule["expr"].replace('run=~".+"', RUNS).strip()} for rule in alerts()]
    assert [{**rule, "expr": rule["expr"].strip()} for rule in group["rules"]] == wanted  # the defaults are its bounds


def test_promtool_accepts_what_the_chart_renders(tmp_path: Path):
    values = helm.yaml.safe_load((helm.ROOT / "examples" / "metrics.yaml").read_text())
    made = helm.only(helm.template(values), "PrometheusRule")
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(made["spec"]))
    assert "9 rules found" in run(f"promtool check rules {path}")


def test_each_alert_says_what_to_do_and_where_it_is_explained():
    page = (helm.ROOT / "docs" / "metrics.md").read_text()
    anchors = {
        re.sub(r"[^\w -]", "", title).replace(" ", "-").lower() for title in re.findall(r"^#+ (.+)$", page, re.M)
    }
    for rule in alerts():
        if "alert" not in rule:
            continue
        notes = rule["annotations"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert "{{ $labels.run }}" in notes["summary"]
        assert "{{ $labels.run }}" in notes["description"]
        where, _, anchor = notes["runbook"].partition("#")
        assert (where, anchor in anchors) == ("docs/metrics.md", True), notes["runbook"]


def test_every_metric_that_rules_and_dashboard_name_is_in_the_table():
    page = (helm.ROOT / "docs" / "metrics.md").read_text()
    listed = set(re.findall(r"`(trainyard_\w+)", page))
    texts = RULES.read_text() + (helm.ROOT / "deploy" / "grafana" / "trainyard.json").read_text()
    named = set(re.findall(r"\btrainyard_[a-z0-9_]+", texts)) - {"trainyard_"}
    assert named - listed == set()


def test_nothing_of_it_is_rendered_unless_asked_for():
    text = helm.template(helm.everything())
    assert "monitoring.coreos.com" not in text
    assert "prometheus.io" not in text
    assert "9400" not in text
