"""The dashboard is one that Grafana takes: numbers, places, variables. tests/e2e/test_metrics.py asks its queries."""

import itertools
import json
import re

from hack.dashboard.panels import DASHBOARD, filled, panels

TEXT = DASHBOARD.read_text()
BOARD = json.loads(TEXT)
VALUES = {"namespace": "vision", "run": "first", "__rate_interval": "2m"}


def test_panels_have_numbers_of_their_own_and_do_not_lie_on_each_other():
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(numbers)) == len(numbers) > 15
    places = {panel["id"]: panel["gridPos"] for panel in BOARD["panels"]}
    for place in places.values():
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
        assert place["w"] > 0 < place["h"]
    for one, other in itertools.combinations(places.values(), 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart or above, (one, other)


def test_nothing_names_a_datasource_but_by_the_variable():
    asked = [BOARD["annotations"]["list"][0], *BOARD["panels"], *(t for p in BOARD["panels"] for t in p["targets"])]
    asked += [one for one in BOARD["templating"]["list"] if one["type"] == "query"]
    for one in asked:
        assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, one
    (source,) = [one for one in BOARD["templating"]["list"] if one["type"] == "datasource"]
    assert (source["name"], source["query"]) == ("datasource", "prometheus")
    assert BOARD["id"] is None  # Grafana gives it one


def test_every_query_chooses_namespace_and_run_and_every_variable_is_there():
    known = {one["name"] for one in BOARD["templating"]["list"]} | {"__rate_interval", "__all"}
    assert set(re.findall(r"\$\{?(\w+)", TEXT)) == known | {"1"}  # of label_replace
    expressions = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
    for expression in [*expressions, BOARD["annotations"]["list"][0]["expr"]]:
        selectors = re.findall(r"\{([^{}]*)\}", expression)
        assert selectors
        for selector in selectors:
            assert 'namespace=~"$namespace", run=~"$run"' in selector, expression


def test_variables_are_filled_in():
    assert filled('x{run=~"$run"}[$__rate_interval]', VALUES) == 'x{run=~"first"}[2m]'
    for panel in panels(VALUES):
        assert all("$" not in target.expression.replace('"$1"', "") for target in panel.targets)
