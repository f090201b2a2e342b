"""How the SDK's shell changes a function's text, and that such a function is refused."""

import importlib.util
import pkgutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import text

CHANGED = {
    "a dollar sign": 'print("$HOME")',
    "a backtick": 'print("`id`")',
    "two backslashes": 'print("a\\\\b")',
    "a backslash at the end of a line": "print(1 + \\\n        2)",
    "EOM alone": 'print("""\nEOM\n""")',
}
BROKEN = {
    "helper from outside": "return helper()",
    "Path, helper from outside": "def inner(path: Path) -> None:\n        helper()",
}


def define(folder: Path, body: str) -> Callable[..., None]:
    """A function with this body, in a separate file."""
    path = folder / "user.py"
    path.write_text(f"from pathlib import Path\n\n\ndef helper() -> None: ...\n\n\ndef train(**given):\n    {body}\n")
    spec = importlib.util.spec_from_file_location("user", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.train


def arrived(folder: Path, function: Callable[..., None], arguments: dict | None = None) -> tuple[str, str]:
    """The text that the SDK makes of a function, and the file that its command leaves on the node."""
    from kubeflow.trainer.backends.kubernetes import utils
    from kubeflow.trainer.constants import constants
    from kubeflow.trainer.types import types

    shown = constants.EXEC_FUNC_SCRIPT.replace("__ENTRYPOINT__", "cat")
    trainer = types.RuntimeTrainer(types.TrainerType.CUSTOM_TRAINER, "torch", "image")
    sent = []
    for command in (("{func_code}{func_file}",), ("bash", "-c", shown)):
        trainer.set_command(command)
        runtime = types.Runtime("runtime", trainer, types.RuntimeKind.TRAINING_RUNTIME)
        sent.append(utils.get_command_using_train_func(runtime, function, arguments, [], None))
    node = folder / "node"  # the command writes a file of the function's own file name
    node.mkdir()
    done = subprocess.run(sent[1], cwd=node, capture_output=True, text=True, check=False)
    return sent[0][0].rsplit("\n", 1)[0].strip(), done.stdout.strip()


@pytest.mark.parametrize("what", CHANGED)
def test_what_the_shell_changes_is_refused(what: str, tmp_path: Path) -> None:
    function = define(tmp_path, CHANGED[what])
    before, after = arrived(tmp_path, function)
    assert before != after
    with pytest.raises(SystemExit, match=f"error: train, line .* has {what}"):
        text.check(function, {})


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_not_sent_along_is_named(what: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"error: train uses {what}"):
        text.check(define(tmp_path, BROKEN[what]), {})


def test_arguments_are_looked_at_too(tmp_path: Path) -> None:
    function = define(tmp_path, "pass")
    for bad, words in (({"a": "$HOME"}, "dollar"), ({"a": float("nan")}, "text"), ({"a": tmp_path}, "text")):
        with pytest.raises(SystemExit, match=words):
            text.check(function, bad)


@pytest.mark.parametrize("name", ["functions.train_ddp", "functions.train_fsdp", "our_trainers.train"])
def test_our_functions_arrive_as_they_are(name: str, tmp_path: Path) -> None:
    function = pkgutil.resolve_name(name)
    arguments = {"results": "/results/runs/a b", "more": [1, "two", {"three": 3.5}]}
    text.check(function, arguments)
    before, after = arrived(tmp_path, function, arguments)
    assert before == after
    assert after.endswith(f"{function.__name__}(**{arguments})")
