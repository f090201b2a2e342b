"""docs/compatibility.md is what ran: tests note it, it is merged, and each version that is built has passed."""

import ast
import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from hack.compatibility import __main__ as page
from hack.compatibility.rows import built, built_by, modules, programs, rows
from tests import ran
from tests.e2e import exchange, running
from trainyard.cluster.checks import operators

ROOT = Path(__file__).resolve().parents[1]
KEPT = json.loads(page.KEPT.read_text())
VERSIONS = {"Kueue": ["0.18.4", "0.19.2"]}


def record(version: str = "0.18.4", **other: object) -> dict[str, Any]:
    """A record of Kueue, which passed."""
    return {
        "program": "Kueue", "version": version, "tried": "queues", "passed": True, "soak": False,
        "time": "2026-11-26T20:00:00+00:00", "commit": "abc",
    } | other  # fmt: skip


# --------------------------------------------------------------------------------------------- what is built has run


@pytest.mark.parametrize(("program", "version"), [(name, one) for name, found in built().items() for one in found])
def test_each_version_that_is_built_or_locked_has_run_and_passed(program: str, version: str) -> None:
    """Where this fails, run the tests of that program on the cluster, and then python -m hack.compatibility."""
    assert any(one["passed"] for one in page.of(KEPT, program, version)), f"{program} {version} has not run"


def test_every_row_has_its_versions() -> None:
    found = built()
    assert set(found) == {name for row in rows() for name in programs(row)}
    assert all(found.values()), found
    assert {"2.1.0", "2.2.1"} < set(found["Kubeflow Trainer"]), "those of hack/versions too"
    assert all(set(row) <= {"name", "modules", "packages", "tested", "expected", "refused", "until"} for row in rows())


def test_a_module_on_which_others_only_depend_is_not_built(tmp_path: Path) -> None:
    text = "tool sigs.k8s.io/kueue/cmd/kueue\nrequire (\n\tsigs.k8s.io/jobset v0.1.0\n\tsigs.k8s.io/kueue v0.2.0\n)\n"
    (tmp_path / "go.mod").write_text(text)
    assert built_by(tmp_path / "go.mod") == {"Kueue": "0.2.0"}


def test_doctor_takes_the_same_versions_for_tested() -> None:
    """Those of hack/programs, and those that can be put on the cluster."""
    found = built()
    for operator in (*operators.ALL, operators.KUEUE):
        usual, *others = found[operator.name]
        assert operator.tested == usual
        assert set(operator.others) == {one.rpartition(".")[0] for one in others}, operator.name


def test_bounds_are_those_of_chart_package_and_dockerfile() -> None:
    told = {row["name"]: row for row in rows()}
    chart = yaml.safe_load((ROOT / "charts/trainyard/Chart.yaml").read_text())
    bound = re.search(r">=(1\.\d+)", chart["kubeVersion"])
    assert bound
    assert bound[1] in told["Kubernetes"]["refused"]
    python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert python == ">=3.11,<3.13"
    assert told["Python of the trainers"]["tested"] == "3.11 and 3.12"
    image = re.search(r"pytorch:(\S+)-py3", (ROOT / "images/pytorch/Dockerfile").read_text())
    assert image
    assert image[1] in told["NVIDIA's PyTorch image"]["expected"]


# ------------------------------------------------------------------------------------------------------------ the page


def test_the_newest_record_of_a_cell_counts_whichever_way_it_ended() -> None:
    later = record(passed=False, time="2026-11-26T21:00:00+00:00")
    by_hand = record(time="2026-11-26", by_hand=True)
    for kept, noted in (([record()], [later]), ([later], [record(), by_hand])):
        assert page.merged(kept, noted, VERSIONS) == [later]
    assert page.merged([by_hand], [record()], VERSIONS) == [record()], "a note of the same day"


def test_what_is_run_with_each_change_stays_so_where_a_release_runs_it_too() -> None:
    later = record(soak=True, time="2026-11-26T21:00:00+00:00")
    assert page.merged([record()], [later], VERSIONS) == [later | {"soak": False}]


def test_a_version_that_is_built_no_more_goes_and_the_others_keep_their_order() -> None:
    kept = [record("0.19.2"), record("0.17.0"), record(tried="takes over"), record()]
    assert page.merged(kept, [], VERSIONS) == [record(), record(tried="takes over"), record("0.19.2")]


def test_the_table_shows_what_failed_and_what_never_ran() -> None:
    records = [record(), record(tried="preempts"), record(tried="resumes", passed=False, soak=True)]
    assert page.draw_ran(records, VERSIONS)[2:] == [
        "| Kueue | 0.18.4 | queues; preempts | passed | 2026-11-26 | each change |",
        "| Kueue | 0.18.4 | resumes | **failed** at abc | 2026-11-26 | a release |",
        "| Kueue | 0.19.2 | nothing yet |  |  |  |",
    ]


def test_a_version_of_which_something_failed_is_no_tested_one() -> None:
    versions = built()
    (line,) = [one for one in page.draw_known([record()], versions) if one.startswith("| Kueue ")]
    assert line.startswith("| Kueue | 0.18.4 |")
    failed = [record(), record(tried="resumes", passed=False)]
    (line,) = [one for one in page.draw_known(failed, versions) if one.startswith("| Kueue ")]
    assert line.startswith("| Kueue |  |")


def test_a_table_takes_the_place_of_the_one_before() -> None:
    comment = "<!-- ran: python -m hack.compatibility -->\n\n"
    text = f"Before\n\n{comment}| old |\n| table |\n\nAfter\n"
    assert page.with_table(text, "ran", ["| new |"]) == f"Before\n\n{comment}| new |\n\nAfter\n"
    with pytest.raises(ValueError, match="known"):
        page.with_table(text, "known", [])


# --------------------------------------------------------------------------------------------------- what tests note


def report(outcome: str, *cells: ran.Cell, when: str = "call", soak: bool = False) -> pytest.TestReport:
    keywords = {"soak": 1} if soak else {}
    where, told = ("a.py", 1, ""), [(ran.PROPERTY, list(cell)) for cell in cells]
    return pytest.TestReport("a.py::x", where, keywords, outcome, "", when, user_properties=told)  # type: ignore[arg-type]


def noted(
    tmp_path: Path,
    *reports: pytest.TestReport,
    worker: bool = False,
    args: tuple[str, ...] = (),
    keyword: str = "",
    ended: pytest.ExitCode = pytest.ExitCode.OK,
) -> list[Any]:
    kept = tmp_path / "build" / "ran.jsonl"
    plugin = ran.Ran(worker, kept)
    for one in reports:
        plugin.pytest_runtest_logreport(one)
    options = {"keyword": keyword}
    session: Any = SimpleNamespace(config=SimpleNamespace(args=args, getoption=options.get))
    plugin.pytest_sessionfinish(session, ended)
    return page.read(kept)


def test_what_ran_is_noted_with_its_outcome_time_and_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ran.OTHERS:
        monkeypatch.delenv(name, raising=False)
    one, other = ("Kueue", "0.18.4", "queues"), ("JobSet", "0.12.0", ran.DDP)
    found = noted(tmp_path, report("passed", one), report("passed", one, other, soak=True))
    assert [(had["program"], had["passed"], had["soak"]) for had in found] == [
        ("Kueue", True, False), ("JobSet", True, True),
    ]  # fmt: skip
    assert page.merged([], found, built())[0].keys() == record().keys()
    assert all(re.fullmatch(r"[0-9a-f]{8,}", had["commit"]) for had in found)
    monkeypatch.setenv("TRAINYARD_KUEUE", "0.19")
    assert [had["soak"] for had in noted(tmp_path, report("passed", one))] == [False, True, True], "appended"


def test_a_cell_that_failed_once_does_not_pass_in_the_same_run(tmp_path: Path) -> None:
    cell = ("Kueue", "0.18.4", "queues")
    for outcomes in (("failed", "passed"), ("passed", "failed")):
        found = noted(tmp_path, *(report(outcome, cell) for outcome in outcomes))
        assert found[-1]["passed"] is False
    assert noted(tmp_path, report("passed", cell), report("failed", cell, when="teardown"))[-1]["passed"] is False


def test_what_was_skipped_or_chosen_by_name_or_is_a_workers_is_not_noted(tmp_path: Path) -> None:
    cell = ("Kueue", "0.18.4", "queues")
    assert not noted(tmp_path, report("skipped", cell), report("passed", cell, when="teardown"))
    assert not noted(tmp_path, report("passed", cell), worker=True)
    assert not noted(tmp_path, report("passed", cell), args=("tests/e2e/test_kueue.py::test_one",))
    assert not noted(tmp_path, report("passed", cell), keyword="one")
    assert not noted(tmp_path, report("passed", cell), ended=pytest.ExitCode.INTERRUPTED)
    assert not noted(tmp_path, report("passed"))


def test_a_version_that_does_not_come_up_or_train_is_noted_as_failed() -> None:
    """A fixture that fails leaves its tests nothing to note."""
    notes, node = ran.Ran(), SimpleNamespace(get_closest_marker=lambda name: name == "soak" or None)
    manager = SimpleNamespace(get_plugin={"ran": notes}.get)
    request: Any = SimpleNamespace(node=node, config=SimpleNamespace(pluginmanager=manager))
    with exchange.trying(request, "trainer", "2.1", ran.DDP):
        pass
    assert not notes.cells
    with pytest.raises(AssertionError), exchange.trying(request, "trainer", "2.1", ran.DDP):
        raise AssertionError
    failed = {"passed": False, "soak": True}
    assert notes.cells == {("Kubeflow Trainer", "2.1.0", ran.DDP): failed, ("JobSet", "0.10.1", ran.DDP): failed}
    newest = exchange.pinned("trainer", exchange.NEWEST["trainer"])
    assert newest == {name: built()[name][0] for name in ("Kubeflow Trainer", "JobSet")}


def test_marks_name_programs_of_the_page_and_each_program_is_named() -> None:
    """In the tests on the cluster, by the mark `shows`; the versions that are put there are named by exchange.py."""
    named: set[str] = set()
    for path in (ROOT / "tests" / "e2e").glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.shows":
                named |= {ast.literal_eval(one) for one in node.args[1:]}
    assert named == set(built())


def test_a_program_tells_its_module_and_version() -> None:
    for name, file in running.FILES.items():
        path = ROOT / "build" / "bin" / file
        if not path.exists():
            pytest.skip("hack/tools/build has not been run")
        assert running.main_module(str(path)) == (modules()[name], built()[name][0])
    assert running.main_module(str(ROOT / "uv.lock")) == ("", "")
    assert running.main_module("/nowhere") == ("", "")
