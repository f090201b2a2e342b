"""What `make quick` chooses: the tests that a change concerns, how nearly, what fits into the time, and the checks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hack.quick import changes, checks, choose, costs, links, named
from hack.quick.choose import Concerned
from tests import costs as test_costs
from tests import patience
from trainyard import cli

ROOT = changes.ROOT


@pytest.fixture(scope="module")
def tree() -> list[str]:
    return changes.tree()


@pytest.fixture(scope="module")
def users(tree: list[str]) -> links.Users:
    return links.users(tree)


# ------------------------------------------------------------------------------------------------ what is concerned

GRAPH = {
    "a/low.py": {"a/high.py": 1.0, "tests/a/test_low.py": 1.0},
    "a/high.py": {"tests/a/test_high.py": 1.0, "tests/test_all.py": 2.0, "a/low.py": 1.0},
    "b/data/": {"tests/a/test_data.py": 1.0},
    "a/other.py": {"tests/a/test_other.py": 1.0},
}


def test_the_nearest_come_first_with_the_way_that_led_to_them() -> None:
    found = choose.concerned(["a/low.py"], GRAPH)
    assert [(one.far, one.path) for one in found] == [
        (0.0, "tests/a/test_low.py"), (2.0, "tests/a/test_high.py"), (3.0, "tests/test_all.py"),
    ]  # fmt: skip
    assert found[1].way == ("tests/a/test_high.py", "a/high.py", "a/low.py")
    assert [one.why() for one in found] == ["a/low.py", "a/high.py < a/low.py", "a/high.py < a/low.py"]


def test_a_changed_test_and_one_that_has_a_changed_modules_name_are_nearest() -> None:
    assert choose.concerned(["tests/a/test_high.py"], GRAPH) == [
        Concerned(0.0, "tests/a/test_high.py", ("tests/a/test_high.py",))
    ]
    assert choose.mirrors("tests/a/test_low.py", ["a/low.py"])
    assert choose.mirrors("tests/a/test_low.py", ["a/low/__init__.py"])
    assert not choose.mirrors("tests/a/test_low.py", ["b/low.py"])


def test_a_folder_that_is_named_stands_for_its_files_and_a_packages_data_for_its_modules() -> None:
    assert [one.path for one in choose.concerned(["b/data/deep/x.yaml"], GRAPH)] == ["tests/a/test_data.py"]
    of_the_package = choose.concerned(["a/deep/table.csv"], GRAPH)
    assert {one.path for one in of_the_package} == {
        "tests/a/test_low.py", "tests/a/test_high.py", "tests/test_all.py", "tests/a/test_other.py"
    }  # fmt: skip
    assert choose.concerned(["a/page.md"], GRAPH) == []


@pytest.mark.parametrize(
    ("changed", "first", "too", "not_so"),
    [
        # by its name; by its imports; by what conftest.py starts for it
        ("src/trainyard/run/fence.py", "tests/unit/run/test_fence.py",
         ["tests/unit/run/test_directory.py", "tests/unit/training/test_kills.py"],
         ["tests/charts/test_render.py", "tests/test_site.py"]),
        # a module that a command starts; a helper of tests that they import by its bare name
        ("src/trainyard/report/scaling.py", "tests/unit/report/test_scaling.py", [], ["tests/unit/pod/test_peers.py"]),
        ("src/trainyard/pod/preflight.py", "tests/unit/pod/test_preflight.py", [], []),
        ("tests/util/faulty.py", "tests/unit/training/test_faults.py", [], ["tests/unit/test_files.py"]),
        ("tests/unit/storage/faulty_fs.py", "tests/unit/storage/test_hung_mount.py", [],
         ["tests/unit/test_files.py"]),
        # data of packages
        ("src/trainyard/recipes/demo.yaml", "tests/unit/config/test_recipes.py", [], ["tests/charts/test_render.py"]),
        ("src/trainyard/native/jpeg.c", "tests/unit/data/test_fuzz.py", ["tests/unit/data/test_decode.py"], []),
        # the chart, examples, pages, images, scripts
        ("charts/trainyard/charts/dataset/templates/job.yaml", "tests/e2e/test_chart_values.py",
         ["tests/charts/test_render.py", "tests/unit/cluster/test_why.py"], ["tests/unit/run/test_fence.py"]),
        ("examples/demo.yaml", "tests/e2e/test_chart_values.py", ["tests/charts/test_render.py"], []),
        ("examples/sdk/jobs.py", "tests/sdk/test_jobs.py", [], ["tests/charts/test_render.py"]),
        ("docs/interruptions.md", "tests/e2e/test_deletions.py",
         ["tests/test_docs.py", "tests/test_site.py", "tests/unit/training/test_interruptions.py"],
         ["tests/unit/run/test_fence.py", "tests/charts/test_render.py"]),
        ("images/filebrowser/serve.py", "tests/images/test_filebrowser.py", ["tests/images/test_images.py"],
         ["tests/unit/run/test_fence.py"]),
        ("hack/machine", "tests/test_machine.py", [], ["tests/charts/test_render.py"]),
        ("src/trainyard/cluster/follow.py", "tests/unit/cluster/test_follow.py", [], ["tests/unit/run/test_fence.py"]),
        ("hack/quick/choose.py", "tests/test_quick.py", [], ["tests/test_site.py"]),
    ],
    ids=lambda value: value if isinstance(value, str) and "test" not in value else "",
)  # fmt: skip
def test_what_a_change_of_this_project_concerns(
    users: links.Users, changed: str, first: str, too: list[str], not_so: list[str]
) -> None:
    assert (ROOT / changed).is_file()
    found = choose.concerned([changed], users)
    assert first in {one.path for one in found if one.far == found[0].far}
    paths = {one.path for one in found}
    assert set(too) <= paths
    assert not paths & set(not_so)
    assert all((ROOT / path).is_file() for path in (first, *too, *not_so))


@pytest.mark.parametrize("changed", ["tests/conftest.py", "uv.lock"])
def test_what_concerns_everything(users: links.Users, tree: list[str], changed: str) -> None:
    assert [one.path for one in sorted(choose.concerned([changed], users), key=lambda one: one.path)] == [
        path for path in tree if links.is_test(path)
    ]


def test_the_tables_name_what_there_is(tree: list[str]) -> None:
    assert {user for those in links.FOUND.values() for user in those} <= set(tree)
    lint = (ROOT / "hack/lint").read_text().replace("mypy $1", "mypy 3.11")
    assert all(f'check "{name}"' in lint for name in checks.READS)


def test_what_a_text_names() -> None:
    text = named.read(
        '"""Of docs/data.md."""\n'
        'run(ROOT / "images" / name / "a" / "b.py", "-m", "trainyard.run.fence", f"x/{name}", "data.md")\n'
        'def test(trainer, path: Path = HERE / "c"): "docs/data.md is not meant"\n'
    )
    assert "a/b.py" in text.joined
    known = {"docs/data.md", "a/b.py", "here/c", "a/", "here/"}
    assert sorted(named.paths([*text.strings, *text.joined], "here", known)) == ["a/b.py", "here/c"]
    assert list(named.modules(text.strings, {"trainyard.run": "src/trainyard/run/__init__.py"})) == [
        "src/trainyard/run/__init__.py"
    ]
    module = {"trainyard.cluster.why": "src/trainyard/cluster/why.py"}
    for texts in (["-m", "trainyard", "why", "run"], ["exec trainyard why run"]):
        assert list(named.modules(texts, module)) == ["src/trainyard/cluster/why.py"]
    assert list(named.modules(["trainyard", "else", "why"], module)) == []
    assert list(named.pages(text.strings, known)) == ["docs/data.md"]


# ------------------------------------------------------------------------------------------------ what fits


def test_the_nearest_and_of_those_the_cheapest_are_taken_while_there_is_time() -> None:
    cost = {"near": 9.0, "cheap": 2.0, "long": 40.0, "far": 5.0, "farther": 1.0}
    far = {"near": 1.0, "cheap": 1.0, "long": 1.0, "far": 2.0, "farther": 3.0}
    found = [Concerned(far[name], name, (name,)) for name in cost]

    def taken(seconds: float, workers: int) -> list[str]:
        chosen, left = choose.fit(found, cost.__getitem__, seconds, workers)
        assert {one.path for one in (*chosen, *left)} == cost.keys()
        assert sum(cost[one.path] for one in chosen) <= max(0, seconds * workers)
        return [one.path for one in chosen]

    assert taken(100, 2) == ["cheap", "near", "long", "far", "farther"]
    assert taken(12, 2) == ["cheap", "near", "far", "farther"], "a file of 40 s runs on one worker"
    assert taken(10, 1) == ["cheap", "far", "farther"]
    assert taken(-5, 2) == []


def test_files_say_by_marks_how_long_they_take_and_whether_they_can_run_here() -> None:
    assert costs.marks("pytestmark = [pytest.mark.takes(60), pytest.mark.e2e]\n") == (60.0, "e2e")
    assert costs.marks("pytestmark = pytest.mark.takes(7)\n@pytest.mark.soak\ndef test(): pass\n") == (7.0, "")
    assert costs.marks("import os\n") == (costs.PLAIN, "")
    assert costs.marks("from conftest import Trainer\n") == (costs.TRAINS, "")
    known = {"tests/test_quick.py": 1.5}
    assert costs.seconds("tests/test_quick.py", known, slowness=3.0) == 1.5
    assert costs.seconds("tests/test_site.py", known, slowness=3.0) == 3 * 40
    assert costs.marks((ROOT / "tests/e2e/test_kueue.py").read_text()).elsewhere == "e2e"
    assert costs.marks((ROOT / "tests/images/test_images.py").read_text()).elsewhere == "images"
    assert costs.marks((ROOT / "tests/unit/storage/test_hung_mount.py").read_text()).elsewhere == "root"


def test_yamllint_sees_the_yaml_files_of_a_change_alone() -> None:
    for files, said in ((["README.md", "ct.yaml"], "yamllint ok"), (["README.md"], "")):
        done = patience.run(["hack/lint", "--only", "yamllint", *files], cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
        assert said in done.stdout
        assert ("yamllint" in done.stdout) == bool(said)


def test_what_would_begin_too_late_is_skipped_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "test_late.py").write_text("def test_it(): raise AssertionError\n")
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "hack.quick.deadline", "-p", "no:cacheprovider"]
    done = patience.run(
        [*command, str(tmp_path)], cwd=ROOT, env={**os.environ, "QUICK_UNTIL": "0", "PYTEST_ADDOPTS": ""}
    )
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert test_costs.LATE in done.stdout


# ------------------------------------------------------------------------------------------------ checks


def test_checks_run_when_what_they_read_has_changed() -> None:
    always = ["ruff", "ruff format", "shellcheck"]
    assert checks.concerned(["tests/test_quick.py"]) == always
    assert checks.concerned(["src/trainyard/run/fence.py"]) == [*always, "mypy 3.11", "imports run downwards"]
    assert "reference pages current" in checks.concerned(["src/trainyard/config/run_plan.py"])
    assert "schemas and chart READMEs current" in checks.concerned(["charts/trainyard/values.yaml"])
    assert "images' requirements current" in checks.concerned(["uv.lock"])


def test_the_reference_is_checked_when_a_command_changes_that_it_describes() -> None:
    shown = cli.known().keys() - {"launch"}  # whose options are torchrun's
    modules = {cli.known()[name].target.partition(":")[0] for name in shown}
    described = [*(f"src/{module.replace('.', '/')}.py" for module in modules), "trainers/ddp.py", "trainers/hvd.py"]
    for path in described:
        assert "reference pages current" in checks.concerned([path]), path


def test_unit_tests_of_the_chart_are_those_of_the_changed_part() -> None:
    chart, every = "charts/trainyard", ["tests/**/*_test.yaml"]
    part = f"{chart}/charts/dataset"
    beside = {part: every, chart: ["tests/dataset/**/*_test.yaml"]}
    assert checks.chart_units([f"{part}/values.yaml"]) == beside
    assert checks.chart_units([f"{chart}/charts/storage/templates/claims.yaml"]) == {f"{chart}/charts/storage": every}
    assert checks.chart_units([f"{chart}/tests/checks_test.yaml", "x"]) == {chart: ["tests/checks_test.yaml"]}
    assert checks.chart_units([f"{part}/tests/job_test.yaml"]) == {part: ["tests/job_test.yaml"]}
    for shared in (f"{chart}/values.yaml", f"{chart}/templates/NOTES.txt"):
        assert checks.chart_units([f"{part}/values.yaml", shared]) == {part: every, chart: every}
    of_all = checks.chart_units([f"{chart}/charts/common/templates/_pod.tpl"])
    assert of_all[chart] == every
    assert of_all[part] == every
    assert len(of_all) == 9
    assert checks.chart_units([f"{chart}/README.md", "docs/charts.md"]) == {}


# ------------------------------------------------------------------------------------------------ the change


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits of an upstream branch, and a clone of it with one of its own."""
    monkeypatch.setattr(changes, "ROOT", tmp_path / "clone")
    for name, value in {"GIT_AUTHOR": "a", "GIT_COMMITTER": "a"}.items():
        monkeypatch.setenv(f"{name}_NAME", value)
        monkeypatch.setenv(f"{name}_EMAIL", f"{value}@example.com")
    git(tmp_path, "init", "-q", "-b", "main", "origin")
    for number in (1, 2):
        commit(tmp_path / "origin", f"old-{number}")
    git(tmp_path, "clone", "-q", "origin", "clone")
    return tmp_path / "clone"


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True)


def commit(folder: Path, name: str) -> None:
    (folder / name).write_text(name)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", name)


def test_a_branch_is_compared_with_where_it_left_its_upstream(repository: Path) -> None:
    commit(repository, "mine")
    (repository / "old-1").unlink()
    (repository / "new").write_text("")
    commit(repository.parent / "origin", "later")
    git(repository, "fetch", "-q")
    assert changes.changed(changes.base()) == ["mine", "new", "old-1"]
    assert changes.changed(changes.base("HEAD~1")) == ["mine", "new", "old-1"]
    assert changes.changed(changes.base("HEAD")) == ["new", "old-1"]
    assert changes.tree() == ["mine", "new", "old-2"]
    with pytest.raises(subprocess.CalledProcessError):
        changes.base("none")


def test_without_a_branch_of_its_own_it_is_what_is_not_committed_or_the_last_commit(repository: Path) -> None:
    assert changes.changed(changes.base()) == ["old-2"], "clean, and its upstream has all of it"
    git(repository, "remote", "remove", "origin")
    assert changes.changed(changes.base()) == ["old-2"]
    (repository / "new").write_text("")
    assert changes.changed(changes.base()) == ["new"]
    (repository / ".gitignore").write_text("new\n")
    assert changes.changed(changes.base()) == [".gitignore"]
