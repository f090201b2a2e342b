"""docs/chart.md and docs/troubleshooting.md say what the chart and scripts/why do."""

import re
import sys

import pytest

from . import helm

sys.path.insert(0, str(helm.ROOT / "scripts"))
from release import remedies

CHART = (helm.ROOT / "docs" / "chart.md").read_text()
TROUBLE = (helm.ROOT / "docs" / "troubleshooting.md").read_text()
ROWS = re.findall(r"^\| `(.+)` \| (.+) \|$", TROUBLE, re.M)
KEYS = re.compile(r"`((?:global|pytorchjob|mpijob|secrets|networkPolicy|dataset|storage)(?:\.[A-Za-z]+)+)")


@pytest.mark.parametrize(("said", "answer"), ROWS, ids=range(len(ROWS)))
def test_the_table_says_what_the_script_answers(said, answer):
    assert remedies.remedy(said.replace("\\|", "|")) == answer


def test_the_tables_are_whole():
    assert {answer for _, answer in ROWS} >= {answer for _, answer in (*remedies.ADMISSION, *remedies.SCHEDULING)}
    for code, meaning in remedies.EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in TROUBLE


@pytest.mark.parametrize("text", [CHART, TROUBLE], ids=["chart", "troubleshooting"])
def test_every_key_that_is_named_exists(text):
    named = set(KEYS.findall(text))
    for key in named:
        node = helm.defaults()
        for step in key.split("."):
            if node == {} and "config" in key:
                break
            assert step in node, key
            node = node[step]
    assert named or text is TROUBLE


def test_the_cookbook_lists_every_example():
    listed = set(re.findall(r"\[([\w-]+\.yaml)\]\(\.\./examples/", CHART))
    assert listed == {path.name for path in helm.EXAMPLES}


def test_the_applications_render():
    (block,) = re.findall(r"```yaml\n(apiVersion: argoproj.*?)```", CHART, re.S)
    application, generator = helm.yaml.safe_load_all(block)
    source = application["spec"]["source"]
    values = (helm.ROOT / source["path"] / source["helm"]["valueFiles"][0]).resolve()
    assert values in helm.EXAMPLES
    assert '"seed": 2' in helm.template(values)
    parameters = generator["spec"]["template"]["spec"]["source"]["helm"]["parameters"]
    wanted = [helm.at(one["name"], one["value"]) for one in parameters]
    wanted[1]["global"]["training"]["config"]["seed"] = 3
    text = helm.template(
        helm.merged(helm.yaml.safe_load(values.read_text()), *wanted, helm.at("global.training.name", "seed-3"))
    )
    assert '"seed": 3' in text
    assert '"dir": "/results/runs/seed-3"' in text
