"""The command `trainyard`: finds the subcommand and runs it in this process.

A subcommand's module is imported only when it is the one that runs: a launcher of ranks starts without torch, and the
commands about a release work where the trainers' packages are not installed.
"""

import contextlib
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trainyard.core import distribution, garbage
from trainyard.core.exits import UserError, guarded
from trainyard.core.variables import check_numbers


@dataclass(frozen=True)
class Command:
    """A subcommand: `module:function`, whose function reads sys.argv and returns an exit code."""

    target: str
    about: str


RELEASE, TRAINING, AFTER = "About a release", "Data and training", "After training"
CHECKOUT, SHELL, PODS = "In a checkout", "Your shell", "What pods run"
COMMANDS: dict[str, dict[str, Command]] = {
    RELEASE: {
        "doctor": Command("trainyard.cluster.doctor:main", "what would stop a run on this cluster, with the remedy"),
        "init": Command("trainyard.cluster.init:main", "write a values file, by questions or options"),
        "convert": Command("trainyard.cluster.convert:main", "write values for a PyTorchJob, MPIJob or TrainJob"),
        "mirror": Command("trainyard.cluster.mirror:main", "every image and address that a release needs"),
        "up": Command("trainyard.cluster.up:main", "install a release or upgrade it, and follow it"),
        "runs": Command("trainyard.cluster.runs:main", "a table of all runs: state, step, time left, top-1, cost"),
        "follow": Command("trainyard.cluster.follow:main", "the jobs of a release until they end, with the time left"),
        "why": Command("trainyard.cluster.why:main", "what each object of a release waits for, and the remedy"),
        "logs": Command("trainyard.cluster.logs:main", "what rank 0 prints, another rank, or all pods"),
        "report": Command("trainyard.cli:report", "the page of a release's run, or of a run directory"),
        "fetch": Command("trainyard.cluster.fetch:main", "copy files of a release's claims to this machine"),
        "send": Command("trainyard.cluster.send:main", "copy a file or folder of this machine onto a release's claim"),
        "delete": Command("trainyard.cluster.delete:main", "uninstall a release; its data only when said twice"),
    },
    TRAINING: {
        "cost": Command("trainyard.cluster.cost:main", "time and money of a run, before it starts"),
        "prepare": Command("trainyard.prepare.command:main", "turn an archive or a folder into shards"),
        "train": Command("trainyard.cli:train", "train on this machine, one process per GPU"),
        "launch": Command("trainyard.pod.launcher:with_log", "start one process per GPU on this node, as torchrun"),
        "config": Command("trainyard.config.command:main", "show and check the settings of a run"),
    },
    AFTER: {
        "evaluate": Command("trainyard.inference.starting:evaluate", "measure a model on labelled images"),
        "predict": Command("trainyard.inference.starting:predict", "say what a model sees on images"),
        "export": Command("trainyard.inference.starting:export", "write a model as ONNX or for torch.export"),
        "scaling": Command("trainyard.report.scaling:main", "compare runs on several numbers of processes"),
    },
    CHECKOUT: {
        "prove": Command("trainyard.cli:prove", "prove the path on one GPU, as `make gpu`; --check judges a result"),
    },
    SHELL: {
        "completion": Command("trainyard.cli:complete", "print the completion of bash, zsh or fish"),
    },
    PODS: {
        "preflight": Command("trainyard.pod.preflight:main", "check this pod before training"),
        "mpi": Command("trainyard.pod.mpi:main", "what the pods of an MPIJob run"),
    },
}  # fmt: skip
OF_TRAINERS = (
    "torch",
    "torchvision",
    "numpy",
    "PIL",
    "prometheus_client",
    "safetensors",
)  # packages of the extra `train`
TRAIN = (
    "Train with DDP or FSDP on this machine. --processes N: how many, the first option (default: one per GPU, else 1)."
)
COMPLETION = """usage: trainyard completion [-h] bash|zsh|fish

Print a script that completes commands and options. For this shell: source <(trainyard completion bash), or for fish:
trainyard completion fish | source. To keep it, put that line into ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish.

options:
  -h, --help  show this help message and exit"""
OPAQUE = ("launch", "completion")  # commands whose options are torchrun's, or none
HELP, VERSION = ("-h", "--help", "help"), ("-V", "--version", "version")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the subcommand that the arguments name, and end the process with its exit code."""
    name, *rest = arguments if arguments is not None else sys.argv[1:] or ["--help"]
    if name in HELP and rest and rest[0] in known():
        name, rest = rest[0], ["--help"]
    guarded(lambda: run(name, rest))


def run(name: str, rest: list[str]) -> int:
    """Run one subcommand; raises UserError for a name that is none and for packages that are missing."""
    if name in HELP:
        print(overview())
        return 0
    if name in VERSION:
        from trainyard import __version__  # imported late: another project's package may have taken its place

        print(f"trainyard {__version__}")
        return 0
    command = known().get(name)
    if command is None:
        import difflib  # imported late: each start of a rank's launcher passes here

        near = difflib.get_close_matches(name, known(), 1)
        hint = f"; did you mean `trainyard {near[0]}`?" if near else ""
        raise UserError(f"there is no command `trainyard {name}`{hint} `trainyard --help` lists them")
    check_numbers()
    sys.argv = [f"trainyard {name}", *rest]
    try:
        return function(command)()
    except ModuleNotFoundError as error:
        if error.name not in OF_TRAINERS:
            raise
        raise UserError(
            f"`trainyard {name}` needs the package {error.name}, which is not installed; the container images have it. "
            f"Elsewhere: {distribution.install('train')}"
        ) from error


def known() -> dict[str, Command]:
    """Return all subcommands by name."""
    return {name: command for group in COMMANDS.values() for name, command in group.items()}


def function(command: Command) -> Callable[[], int]:
    """Import a subcommand's function."""
    module, _, attribute = command.target.partition(":")
    with garbage.paused():
        found: Callable[[], int] = getattr(importlib.import_module(module), attribute)
    return found


def overview() -> str:
    """Return the text of `trainyard --help`."""
    width = max(map(len, known()))
    lines = ["Train image classifiers on Kubernetes: exact to the bit, and with a name for every failure.", ""]
    lines += ["Usage: trainyard COMMAND [OPTIONS]   (`kubectl trainyard` is the same)", ""]
    for title, group in COMMANDS.items():
        lines += [f"{title}:", *(f"  {name:<{width}}  {command.about}" for name, command in group.items()), ""]
    lines += ["Options:", "  -h, --help     this text; `trainyard COMMAND --help` has a command's options"]
    lines += ["  -V, --version  the version", ""]
    lines += ["Exit codes: 0 done, 2 wrong settings or input; others are in docs/reference/exit-codes.md."]
    return "\n".join(lines)


def train() -> int:
    """Train with DDP or FSDP on this machine: `--processes N` and the trainer's own options."""
    rest = sys.argv[1:]
    if rest and rest[0] in HELP:
        main: Callable[[str, str, str], int] = importlib.import_module("trainyard.training.command").main
        return main("trainyard train", "ddp", TRAIN)
    count, rest = _processes(rest)
    sys.argv = ["trainyard launch", "--nproc-per-node", str(count), "-m", "trainers.ddp", *rest]
    return function(known()["launch"])()


def _processes(rest: list[str]) -> tuple[int, list[str]]:
    """Take `--processes N` from the front of the options; raises UserError."""
    if not rest or rest[0].partition("=")[0] != "--processes":
        return max(1, len(list(Path("/dev").glob("nvidia[0-9]*")))), rest
    _, separator, text = rest[0].partition("=")
    if not separator:
        text, rest = (rest[1] if len(rest) > 1 else ""), rest[1:]
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--processes {text}: must be a whole number of 1 or more")
    return int(text), rest[1:]


def report() -> int:
    """Write the page of a run directory of this machine again, or fetch that of a release."""
    local = len(sys.argv) > 1 and Path(sys.argv[1]).is_dir()
    return function(Command("trainyard.report.command:main" if local else "trainyard.cluster.report:main", ""))()


def prove() -> int:
    """Run the checkout's `make gpu`, or judge a result of one; raises UserError where there is no checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "benchmarks" / "gpu" / "run.py").is_file():
        raise UserError(
            "`trainyard prove` runs benchmarks/gpu of a checkout, which is no part of the package: clone the "
            "repository, and there run `make gpu`, or `make gpu CHECK=result.json`"
        )
    sys.path.insert(0, str(root))
    return function(Command("benchmarks.gpu.run:main", ""))()


def complete() -> int:
    """Print the completion of a shell; raises UserError for one that has none."""
    from trainyard import completion

    shell = sys.argv[1] if len(sys.argv) == 2 else ""
    if shell in HELP:
        print(COMPLETION)
        return 0
    if shell not in ("bash", "zsh", "fish"):
        raise UserError("say which shell: trainyard completion bash|zsh|fish")
    options: dict[str, list[str]] = {}
    for name, command in known().items():
        with contextlib.suppress(ModuleNotFoundError):  # commands whose packages are not installed
            words = f"trainyard {name}"
            options[name] = completion.options_of(words, function(command)) if name not in OPAQUE else []
    if shell == "fish":
        print(completion.fish(options, {name: command.about for name, command in known().items()}), end="")
    else:
        print((completion.bash if shell == "bash" else completion.zsh)(options), end="")
    return 0
