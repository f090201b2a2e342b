"""docs/chart.md, troubleshooting.md and reference/exit-codes.md say what the chart and trainyard why do."""

import re

import pytest

from trainyard.cluster import remedies

from . import helm

CHART = (helm.ROOT / "docs" / "chart.md").read_text()
GITOPS = [(helm.ROOT / "docs" / name).read_text() for name in ("argocd.md", "kueue.md", "metrics.md")]
TROUBLE = (helm.ROOT / "docs" / "troubleshooting.md").read_text()
EXIT_CODES = (helm.ROOT / "docs" / "reference" / "exit-codes.md").read_text()
ROWS = re.findall(r"^\| `(.+)` \| (.+) \| .+ \|$", TROUBLE, re.M)
KEYS = re.compile(r"`((?:global|pytorchjob|mpijob|secrets|networkPolicy|dataset|evaluate|storage)(?:\.[A-Za-z]+)+)")


@pytest.mark.parametrize(("said", "answer"), ROWS, ids=range(len(ROWS)))
def test_the_table_says_what_the_script_answers(said, answer):
    assert remedies.remedy(said.replace("\\|", "|")) == answer


def test_the_tables_are_whole():
    assert {answer for _, answer in ROWS} >= {answer for _, answer in (*remedies.ADMISSION, *remedies.SCHEDULING)}
    for code, meaning in remedies.EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in EXIT_CODES


PAGES = {"chart": CHART, "troubleshooting": TROUBLE} | dict(zip(("argocd", "kueue", "metrics"), GITOPS, strict=True))


@pytest.mark.parametrize("text", PAGES.values(), ids=PAGES.keys())
def test_every_key_that_is_named_exists(text):
    named = set(KEYS.findall(text))
    assert [key for key in named if not helm.is_key(key)] == []
    assert named or text is TROUBLE


def test_the_cookbook_lists_every_example():
    listed = set(re.findall(r"\[([\w-]+\.yaml)\]\(\.\./examples/", CHART))
    assert listed == {path.name for path in helm.EXAMPLES}
