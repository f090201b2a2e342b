"""The command `trainyard`, and the names of before, which go on working for one version."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, environment
from forked import Forker

from trainyard import __version__, cli


def trainyard(*words: str, module: str = "trainyard", **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        env=environment(env),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def forked(forker: Forker, *words: str, module: str = "trainyard") -> "subprocess.CompletedProcess[str]":
    """Do the same in a process that has loaded torch already: some commands take seconds for that."""
    return forker.run([sys.executable, "-m", module, *words], env=environment(), cwd=ROOT)


def test_help_lists_every_command_in_its_group() -> None:
    said = trainyard("--help").stdout
    assert trainyard().stdout == said
    assert trainyard("help").stdout == said
    for title, group in cli.COMMANDS.items():
        assert f"\n{title}:\n" in said
        for name, command in group.items():
            assert re.search(rf"^  {name} +{re.escape(command.about)}$", said, re.M)


def test_help_of_a_command_is_its_own() -> None:
    said = trainyard("why", "--help")
    assert said.returncode == 0
    assert said.stdout.startswith("usage: trainyard why ")
    assert trainyard("help", "why").stdout == said.stdout


def test_the_version_is_that_of_the_package() -> None:
    assert trainyard("--version").stdout == f"trainyard {__version__}\n"
    assert f'\nversion = "{__version__}"\n' in (ROOT / "pyproject.toml").read_text()


def test_a_command_that_is_none_is_named_with_the_nearest() -> None:
    done = trainyard("evalute")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no command `trainyard evalute`; did you mean `trainyard evaluate`?" in done.stderr


def absent(folder: Path, *packages: str) -> str:
    """Return a PYTHONPATH on which these packages cannot be imported, as if they were not installed."""
    for name in packages:
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError('No module named {name}', name='{name}')\n")
    return os.pathsep.join([str(folder), environment()["PYTHONPATH"]])


@pytest.mark.parametrize(
    ("words", "package"),
    [
        (("train", "--recipe", "demo"), "torch"),
        (("launch", "-m", "trainers.ddp"), "torch"),
        (("prepare", "verify", "x"), "numpy"),
        (("evaluate", "--help"), "numpy"),
        (("predict", "--help"), "numpy"),
        (("export", "--help"), "torch"),
    ],
)
def test_without_the_trainers_packages_the_extra_is_named(tmp_path: Path, words: tuple[str, ...], package: str) -> None:
    done = trainyard(*words, PYTHONPATH=absent(tmp_path, *cli.OF_TRAINERS))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: `trainyard {words[0]}` needs the package {package}, which is not installed; the container images "
        "have it. Elsewhere: `uv tool install '.[train]'` in a clone of the repository, or './FILE.whl[train]' of its "
        "wheel\n"
    )


HELPS = """
import sys
from trainyard import cli

for name in sys.argv[1:]:
    try:
        code = cli.run(name, ["--help"])
    except SystemExit as end:
        code = end.code
    assert not code, name
"""


def test_commands_about_a_release_and_settings_need_no_trainer(tmp_path: Path) -> None:
    path = absent(tmp_path, *cli.OF_TRAINERS)
    words = [sys.executable, "-c", HELPS, *cli.COMMANDS[cli.RELEASE], "config"]
    done = subprocess.run(
        words, env=environment({"PYTHONPATH": path}), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: trainyard ") == len(words) - 3
    assert trainyard("config", "--recipe", "demo", PYTHONPATH=path).returncode == 0


@pytest.mark.parametrize("name", ["launch", "mpi", "evaluate", "predict", "preflight", "scaling", "config", "prepare"])
def test_the_program_of_before_is_the_command_of_today(forker: Forker, name: str) -> None:
    before, today = forked(forker, "--help", module=f"trainers.{name}"), forked(forker, name, "--help")
    assert (before.returncode, before.stdout, before.stderr) == (0, today.stdout, today.stderr)


def test_modules_of_before_are_those_of_today() -> None:
    script = (
        "import trainers.models.small as before, trainyard.models.small as today\n"
        "from trainers.exits import UserError; from trainers import config; from trainers.prepare.sources import base\n"
        "import trainyard.core.exits, trainyard.config, trainyard.prepare.sources.base, importlib.resources\n"
        "assert before is today and today.__spec__.name == today.__name__ == 'trainyard.models.small'\n"
        "assert UserError is trainyard.core.exits.UserError and config is trainyard.config\n"
        "assert base is trainyard.prepare.sources.base\n"
        "try: import trainers.nothing\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("No module named 'trainers.nothing'\n", "")


def test_a_setting_with_a_name_of_before_is_warned_of() -> None:
    words = ("--recipe", "demo", "--set", "strategy=horovod", "--set")  # refused by ddp, before torch is loaded
    before = trainyard(*words, "model.name=trainers.models.small:resnet10", module="trainers.ddp")
    today = trainyard(*words, "model.name=trainyard.models.small:resnet10", module="trainers.ddp")
    first, rest = before.stderr.split("\n", 1)
    assert first == (
        "warning: model.name = 'trainers.models.small:resnet10': only this version still knows that name; "
        "write trainyard.models.small:resnet10"
    )
    assert rest == today.stderr
    assert before.returncode == today.returncode == 2


def test_scripts_of_before_run_the_commands_of_today() -> None:
    for name in ("why", "follow", "fetch", "send"):
        done = subprocess.run([ROOT / "scripts" / name, "--help"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"usage: trainyard {name} ")


def test_train_takes_the_number_of_processes_first() -> None:
    assert cli._processes(["--processes", "3", "--recipe", "demo"]) == (3, ["--recipe", "demo"])
    assert cli._processes(["--processes=3"]) == (3, [])
    assert cli._processes(["--recipe", "demo"])[1] == ["--recipe", "demo"]
    done = trainyard("train", "--processes", "none")
    assert done.returncode == 2
    assert "--processes none: must be a whole number of 1 or more" in done.stderr


@pytest.fixture(scope="module")
def script(forker: Forker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "trainyard.bash"
    path.write_text(forked(forker, "completion", "bash").stdout)
    return path


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("pre", {"prepare", "predict", "preflight"}),
        ("--v", {"--version"}),
        ("why --n", {"--namespace"}),
        ("fetch --c", {"--claim"}),
        ("evaluate --image", {"--image-size"}),
    ],
)
def test_bash_completes_commands_and_options(script: Path, typed: str, offered: set[str]) -> None:
    words = ["trainyard", *typed.split(" ")]
    typing = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}"
    line = f"source {script}; {typing}; _trainyard; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-euc", line], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == offered


def test_fish_and_zsh_get_all_commands(forker: Forker) -> None:
    """Neither shell is part of what the tests install: only the texts are compared."""
    said = forked(forker, "completion", "fish").stdout
    for name in cli.known():
        assert f"-f -a {name} -d '" in said
    assert "__fish_seen_subcommand_from why' -l namespace" in said
    assert "bashcompinit" in forked(forker, "completion", "zsh").stdout
    assert trainyard("completion", "tcsh").stderr == "error: say which shell: trainyard completion bash|zsh|fish\n"
