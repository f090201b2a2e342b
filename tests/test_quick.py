"""What `make quick` chooses: tests by name, by import and by what they name, static checks, and the chart's units."""

import subprocess
from pathlib import Path

import pytest

from hack import quick

TREE = {
    "src/a/low.py": "", "src/a/high.py": "from a import low\n", "src/a/top.py": "from . import high\n",
    "tests/a/test_low.py": "", "tests/a/test_low_twice.py": "", "tests/b/test_other.py": "import a.low\n",
    "tests/a/test_top.py": "", "tests/test_page.py": 'read("page.md")\n', "tests/e2e/test_high.py": "",
}  # fmt: skip


def test_the_name_comes_first_then_who_imports_it() -> None:
    assert quick.choose(["src/a/low.py"], TREE) == {
        "tests/a/test_low.py": "tests src/a/low.py", "tests/a/test_low_twice.py": "tests src/a/low.py",
        "tests/b/test_other.py": "uses src/a/low.py",
    }  # fmt: skip


def test_where_nothing_can_run_here_the_tests_of_its_users_are_taken() -> None:
    assert list(quick.choose(["src/a/high.py"], TREE)) == ["tests/e2e/test_high.py", "tests/a/test_top.py"]


def test_pages_are_found_by_their_names() -> None:
    assert list(quick.choose(["docs/page.md"], TREE)) == ["tests/test_page.py"]


def test_checks_run_when_what_they_read_has_changed() -> None:
    assert quick.checks(["tests/test_quick.py"]) == ["ruff", "ruff format", "shellcheck"]
    assert {"mypy 3.11", "imports run downwards"} <= set(quick.checks(["src/trainyard/run/fence.py"]))
    lint = (quick.ROOT / "hack/lint").read_text().replace("mypy $1", "mypy 3.11")
    assert all(f'check "{name}"' in lint for name in quick.READS)


def test_unit_tests_of_the_chart_are_those_of_the_changed_part() -> None:
    chart = quick.UMBRELLA
    part = {(f"{chart}/charts/dataset", quick.UNITS), (chart, "tests/dataset/**/*_test.yaml")}
    assert quick.chart_units([f"{chart}/charts/dataset/values.yaml", f"{chart}/README.md"]) == part
    assert len(quick.chart_units([f"{chart}/charts/common/templates/_pod.tpl"])) == 9


def test_a_branch_is_compared_with_where_it_left_its_upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "ROOT", tmp_path)
    own = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    quick.git("init", "-q", "-b", "main")
    for name in ("old", "new"):
        (tmp_path / name).touch()
        quick.git("add", "."), quick.git(*own, "commit", "-qm", name)
    assert quick.changed(quick.base("")) == ["new"], "the last commit, where there is no upstream"
    quick.git("update-ref", quick.MAIN, "HEAD~1")
    (tmp_path / "mine").touch()
    assert quick.changed(quick.base("")) == ["mine", "new"]
    assert quick.changed(quick.base("HEAD")) == ["mine"]
    with pytest.raises(subprocess.CalledProcessError):
        quick.base("none")
