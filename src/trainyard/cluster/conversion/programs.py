"""The program behind a launcher: what torchrun, mpirun, deepspeed or accelerate start, and what their options say.

The chart starts torchrun or mpirun itself, with the numbers of nodes and processes from values. So a launcher is taken
off a command line; options that say where ranks meet and how many there are become values or are not needed.
"""

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from trainyard.cluster.parsing import WrongInputError

MPI = ("mpirun", "mpiexec", "horovodrun")
SHELLS = ("sh", "bash", "ash", "dash", "zsh")
PYTHON = re.compile(r"python[0-9.]*$")
# Options of torchrun that take no value; all others take one (torch.distributed.run of PyTorch 2.8)
TORCHRUN_FLAGS = ("standalone", "no-python", "run-path", "module", "m", "use-env", "virtual-local-rank", "signals")
# Those whose meaning is in values, or which the chart's launcher sets itself
PLACES = (
    "nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "rdzv-backend", "rdzv-endpoint", "rdzv-id",
    "rdzv-conf", "standalone", "local-addr", "max-restarts", "use-env", "no-python", "m", "module",
)  # fmt: skip
# How many values an option of mpirun or horovodrun takes (Open MPI 4.1, orterun --help); others are refused
MPIRUN = {
    "np": 1, "n": 1, "c": 1, "x": 1, "mca": 2, "gmca": 2, "bind-to": 1, "map-by": 1, "rank-by": 1, "hostfile": 1,
    "machinefile": 1, "H": 1, "host": 1, "N": 1, "npernode": 1, "wdir": 1, "prefix": 1, "path": 1, "output-filename": 1,
    "allow-run-as-root": 0, "tag-output": 0, "timestamp-output": 0, "oversubscribe": 0, "report-bindings": 0, "v": 0,
    "verbose": 0, "q": 0, "quiet": 0, "display-map": 0, "noprefix": 0, "merge-stderr-to-stdout": 0,
    "nooversubscribe": 0,
}  # fmt: skip
# Those that the chart's launcher sets itself, or does not need
OF_LAUNCHER = (
    "bind-to", "map-by", "rank-by", "hostfile", "machinefile", "H", "host", "N", "npernode", "prefix", "noprefix",
    "allow-run-as-root", "oversubscribe", "nooversubscribe", "c",
)  # fmt: skip
# What mpirun of the chart has by itself (trainyard/pod/mpi.py)
OWN_MCA = {"pml": "ob1", "btl": "^openib", "plm_rsh_agent": "", "orte_keep_fqdn_hostnames": ""}
ACCELERATE_FLAGS = (
    "multi-gpu",
    "cpu",
    "m",
    "module",
    "no-python",
    "use-deepspeed",
    "use-fsdp",
    "same-network",
    "quiet",
)
ACCELERATE_PLACES = (
    "num-processes", "num-machines", "machine-rank", "main-process-ip", "main-process-port", "multi-gpu",
    "rdzv-backend", "same-network", "m", "module", "no-python",
)  # fmt: skip
DEEPSPEED_FLAGS = ("no-ssh", "no-python", "module", "force-multi", "no-local-rank", "bind-cores-to-rank")
DEEPSPEED_PLACES = (
    "num-gpus", "num-nodes", "hostfile", "master-addr", "master-port", "include", "exclude", "H", "node-rank",
    "launcher", "no-ssh", "module", "no-python", "force-multi",
)  # fmt: skip
WORD = re.compile(r"""(?:[^\s"'\\;&|]|\\.|"(?:\\.|[^"\\])*"|'[^']*')+""", re.S)
TORCH = r"python[0-9.]*\s+-m\s+torch\.distributed\.(?:run|launch)"
HEADS = rf"torchrun|mpirun|mpiexec|horovodrun|deepspeed|accelerate\s+launch|{TORCH}"
LAUNCHERS = re.compile(rf"(?<![\w./-])(?:[\w./-]*/)?(?:{HEADS})(?=\s|$)")
# Lines of a script that do no harm when every rank runs them
HARMLESS = re.compile(r"^\s*(set\s|export\s|cd\s|echo\s|source\s|\.\s|ulimit\s|exec\s|[A-Za-z_]\w*=\S*\s*$|#|$)")


class Program(NamedTuple):
    """The program that every rank runs, and the options of the launcher before it."""

    words: list[str]
    launcher: str = ""  # as people call it; empty for a program that nothing started
    processes: str = ""  # per node, as written
    ranks: str = ""  # of the whole job, as written
    nodes: str = ""
    env: tuple[tuple[str, str], ...] = ()  # variables that the launcher was to set
    folder: str = ""  # to work in
    replaced: tuple[str, ...] = ()  # options that the chart's own launcher has in another way
    lost: tuple[str, ...] = ()  # options that nothing replaces
    per_rank: tuple[str, ...] = ()  # commands of a script that every rank runs instead of every pod


def find(words: Sequence[str]) -> Program:
    """Take the launcher off a command line, also inside `sh -c`; raises WrongInputError where that is not possible."""
    if name(words[0]) in SHELLS and len(words) > 2 and re.fullmatch(r"-[a-z]*c", words[1]):
        return of_script(words)
    return bare(list(words))


def bare(words: list[str]) -> Program:
    """Take the launcher off a command line without a shell."""
    first = name(words[0])
    if first == "torchrun":
        return of_torchrun(words[1:])
    if PYTHON.match(first) and words[1:3] in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
        return of_torchrun(words[3:])
    if first in MPI:
        return of_mpirun(words[1:], first)
    if first == "deepspeed":
        return of_python(words[1:], "deepspeed", DEEPSPEED_FLAGS, DEEPSPEED_PLACES)
    if first == "accelerate" and words[1:2] == ["launch"]:
        return of_python(words[2:], "accelerate launch", ACCELERATE_FLAGS, ACCELERATE_PLACES)
    return Program(words)


def name(word: str) -> str:
    """Return the name of a program without its folder."""
    return word.rpartition("/")[2]


def options(words: list[str], flags: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Part options with their values from what follows; `_` in a name is the same as `-`."""
    found = []
    while words and words[0].startswith("-") and words[0] != "--":
        key, equals, value = words[0].partition("=")
        key = key.lstrip("-").replace("_", "-")
        words = words[1:]
        if not equals and key not in flags and words:
            value, words = words[0], words[1:]
        found.append((key, value))
    return found, words[1:] if words[:1] == ["--"] else words


def of_torchrun(words: list[str]) -> Program:
    """Take torchrun's options off."""
    return of_python(words, "torchrun", TORCHRUN_FLAGS, PLACES)


def of_python(words: list[str], launcher: str, flags: Sequence[str], places: Sequence[str]) -> Program:
    """Take the options of a launcher off that starts Python, unless told otherwise."""
    found, rest = options(words, flags)
    given = dict(found)
    if not rest:
        raise WrongInputError(f"{launcher} starts nothing in {shlex.join(words)!r}: say the program by --command")
    python = [] if "no-python" in given else ["python", "-m"] if {"m", "module"} & set(given) else ["python"]
    return Program(
        [*python, *rest],
        launcher,
        processes=given.get("nproc-per-node", given.get("num-gpus", "")),
        ranks=given.get("num-processes", ""),
        nodes=given.get("nnodes", given.get("num-nodes", given.get("num-machines", ""))),
        replaced=tuple(f"--{key}" for key in given if key in places),
        lost=tuple(f"--{key}={value}" if value else f"--{key}" for key, value in found if key not in places),
    )


def of_mpirun(words: list[str], launcher: str) -> Program:
    """Take the options of mpirun off; raises WrongInputError for one whose number of values is not known."""
    env, replaced, lost, folder, ranks = [], [], [], "", ""
    while words and words[0].startswith("-"):
        option = words[0].lstrip("-")
        if option not in MPIRUN:
            raise WrongInputError(f"{launcher} {words[0]} is not known: say the program that it starts by --command")
        values, words = words[1 : 1 + MPIRUN[option]], words[1 + MPIRUN[option] :]
        if option in ("np", "n"):
            ranks = values[0]
        elif option == "x":
            key, equals, value = values[0].partition("=")
            env += [(key, value)] if equals else []  # without a value, ranks have it from their pod
            replaced.append(f"-x {key}")
        elif option == "wdir":
            folder = values[0]
        elif option in ("mca", "gmca") and OWN_MCA.get(values[0]) not in ("", values[1]):
            env.append((f"OMPI_MCA_{values[0]}", values[1]))
        elif option in OF_LAUNCHER or option in ("mca", "gmca"):
            replaced.append(" ".join([f"-{option}", *values]))
        else:
            lost.append(" ".join([f"-{option}", *values]))
    if not words:
        raise WrongInputError(f"{launcher} starts nothing that is known: say the program by --command")
    return Program(words, launcher, "", ranks, "", tuple(env), folder, tuple(replaced), tuple(lost))


def of_script(words: Sequence[str]) -> Program:
    """Take the one launcher out of a shell's script; raises WrongInputError where there are several."""
    script = words[2].replace("\\\n", " ")
    starts = [one for one in LAUNCHERS.finditer(script) if not _in_comment(script, one.start())]
    if not starts:
        # Without a launcher a pod has run it once, and so does each rank
        return Program(list(words))
    if len(starts) > 1:
        raise WrongInputError(
            f"the script starts {len(starts)} launchers ({', '.join(one[0] for one in starts)}), and the chart starts "
            "one: say by --command what every rank runs"
        )
    begin, end = starts[0].start(), _end(script, starts[0].end())
    raw = WORD.findall(script[begin:end])
    inner = bare([_plain(word) for word in raw])
    # The words of the program are the last ones as they are written, with variables and quotes
    python = (
        ["python", "-m"] if inner.words[:2] == ["python", "-m"] else ["python"] if inner.words[0] == "python" else []
    )
    kept = raw[len(raw) - (len(inner.words) - len(python)) :] if inner.launcher not in MPI else raw[-len(inner.words) :]
    python = [] if inner.launcher in MPI else python
    rest = script[:begin] + " ".join([*python, *kept]) + script[end:]
    others = [line.strip() for line in (script[:begin] + "\n" + script[end:]).splitlines() if not HARMLESS.match(line)]
    return inner._replace(words=[*words[:2], rest, *words[3:]], per_rank=tuple(others))


def _plain(word: str) -> str:
    """Return a word of a script without its quotes; variables stay as they are written."""
    try:
        return "".join(shlex.split(word))
    except ValueError:
        return word


def _end(script: str, start: int) -> int:
    """Return where a simple command ends that begins before `start`."""
    while (word := WORD.match(script, start)) or script[start : start + 1] in (" ", "\t"):
        start = word.end() if word else start + 1
    return len(script[:start].rstrip(" \t"))


def _in_comment(script: str, start: int) -> bool:
    """Whether a place of a script lies in a comment."""
    line = script[script.rfind("\n", 0, start) + 1 : start]
    return bool(re.search(r"(^|\s)#", line))
