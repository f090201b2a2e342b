"""Install a release from a values file, or upgrade it, and follow it until its jobs have ended.

trainyard up RELEASE -f VALUES [-n NAMESPACE] [--chart REF] [--set KEY=VALUE] [--no-follow]
"""

import argparse
import contextlib
import re
import sys
import time
from pathlib import Path

import yaml

from trainyard.cluster import claim_changes, follow, helm, inventory, kube, parsing, published, trainjobs
from trainyard.cluster.checks.operators import OPERATOR_OF
from trainyard.cluster.demand import find_doubled_key
from trainyard.cluster.errors import KubeError, RefusedError
from trainyard.cluster.parsing import WrongInputError

# What webhooks of Trainer and Kueue say of a TrainJob while they do not know its TrainingRuntime, made just before it
UNKNOWN_RUNTIME = re.compile(r"must be created before the TrainJob|denied the request: runtime '[^']*' not found")
# What Helm says of a cluster that lacks the run's operator
UNKNOWN_JOB = re.compile(r'no matches for kind "(PyTorchJob|MPIJob|TrainJob|TrainingRuntime)"')
TRIES, PAUSE = 5, 2.0  # until they know it; seconds between tries


def check_values(path: Path) -> None:
    """Raise WrongInputError for a values file that is missing, or that is no YAML map."""
    try:
        text = path.read_text()
        found = yaml.safe_load(text)
    except FileNotFoundError:
        raise WrongInputError(f"-f {path}: there is no such file: `trainyard init -o {path}` writes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise WrongInputError(f"-f {path}: it cannot be read ({error}): name a values file") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        said = getattr(error, "problem", None) or str(error)
        raise WrongInputError(f"-f {path} is not YAML{where}: {said}: correct that line") from None
    if not isinstance(found, dict | None):
        raise WrongInputError(f"-f {path} holds no keys and values: see `trainyard init` for how one looks")
    if twice := find_doubled_key(text):
        raise WrongInputError(f"-f {path}: {twice}")


def chart(args: argparse.Namespace) -> list[str]:
    """Return Helm's arguments for the chart that is meant: the option's, the environment's, or the published one."""
    named = published.find_chart(args.chart)
    if not named:
        raise WrongInputError(
            "no chart is known: call this in a checkout, or name one by --chart or TRAINYARD_CHART, such as oci://..."
        )
    remote = "://" in named
    if not remote and not Path(named).exists():
        origin = "--chart" if args.chart else "TRAINYARD_CHART"
        raise WrongInputError(f"{origin} is {named}, which is not there: name a folder, a package, or oci://...")
    return [named, *published.version_options(named, args.chart_version)]


def install(args: argparse.Namespace) -> int:
    """Have Helm install or upgrade the release; return its exit code."""
    chosen = helm_arguments(args)
    claim_changes.refuse_changes(args.release, args.namespace, chosen)
    what = [*chosen, "-n", args.namespace, *missing_namespace(args.namespace)]
    for left in reversed(range(TRIES)):
        done = helm.run("upgrade", "--install", args.release, *what)
        if not done.returncode or not left or not UNKNOWN_RUNTIME.search(done.stderr):
            break
        print("up: the operator did not know the release's TrainingRuntime yet: trying again", file=sys.stderr)
        time.sleep(PAUSE)
    if unknown := UNKNOWN_JOB.search(done.stderr):
        print(f"up: {name_operators(unknown[1], args.values[-1])}", file=sys.stderr)
    return done.returncode


def missing_namespace(namespace: str) -> list[str]:
    """Return Helm's option for a namespace that may have to be made.

    With it Helm fails, even where the namespace is there, for a user who may not make namespaces. Who may not look is
    told so, and Helm goes on as if it were there: a team's rights are in a namespace that is.
    """
    create = ["--create-namespace"]
    try:
        kube.read(f"/api/v1/namespaces/{namespace}")
    except RefusedError as error:
        if error.status != 403:
            return create
        unknown = f"whether namespace {namespace} exists could not be checked, since this user may not look at it"
        print(
            f"up: {unknown}; if Helm does not find it, have it made: kubectl create namespace {namespace}",
            file=sys.stderr,
        )
    except KubeError:
        return create
    return []


def name_operators(kind: str, values: Path) -> str:
    """Say which operators a cluster has that lacks the one of a kind of job."""
    there: list[str] = []
    asked = "trainjob" if kind == "TrainingRuntime" else kind.lower()
    with contextlib.suppress(KubeError):
        there = [name for name, one in OPERATOR_OF.items() if name != asked and kube.known(one.kinds[0])]
    own = f"set global.training.operator to {' or '.join(there)}, which it has, or " if there else ""
    return f"this cluster has no {kind}: {own}install what `trainyard doctor -f {values}` names"


def has_jobs(release: str, namespace: str) -> bool:
    """Whether a release has a job that can be followed."""
    wanted = dict.fromkeys(follow.JOBS, f"{inventory.INSTANCE}={release}")
    objects = inventory.list_kinds(wanted | {trainjobs.TRAINJOBS: ""}, namespace, [])
    objects[trainjobs.TRAINJOBS] = trainjobs.list_own(release, objects)
    return bool(follow.jobs_of(objects))


def up(args: argparse.Namespace) -> int:
    """Install what the command line names, and follow it."""
    if code := install(args):
        return code
    if args.no_follow or not has_jobs(args.release, args.namespace):
        return 0
    return follow.follow(args.release, args.namespace, set(), args.timeout)


def add_chart(own: argparse.ArgumentParser) -> None:
    """Give a command the options that name values and the chart."""
    add = own.add_argument
    add("-f", "--values", type=Path, action="append", required=True, metavar="FILE",
        help="values file; a later one wins")  # fmt: skip
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a value that wins over the files', as Helm's")
    where = "default: TRAINYARD_CHART, else the published one, or a checkout's"
    add("--chart", default="", metavar="REF", help=f"a folder, a package or oci://... ({where})")
    add("--chart-version", default="", metavar="VERSION", help="version of the chart (default: this one's)")


def helm_arguments(args: argparse.Namespace) -> list[str]:
    """Return Helm's arguments for the chart and values of the command line; raises WrongInputError."""
    for path in args.values:
        check_values(path)
    files = [part for path in args.values for part in ("-f", str(path))]
    settings = [part for one in args.set for part in ("--set", one)]
    return [*chart(args), *files, *settings]


def parser() -> argparse.ArgumentParser:
    """Return the parser of `trainyard up`."""
    own = parsing.command(
        "up",
        "Install a release from a values file, or upgrade it, and follow it until its jobs have ended.",
        """
        trainyard init
        trainyard up run -f trainyard.yaml -n vision
        trainyard up run -f trainyard.yaml -n vision --set global.training.nodes=4 --no-follow
        trainyard up run -f trainyard.yaml -n vision --chart charts/trainyard
        """,
        {
            0: "all jobs have succeeded; with --no-follow, the release is installed",
            1: "Helm refused it, in its own words above; or a job has failed, or time is up",
        },
        "Ctrl-C ends the following; the release continues.",
    )
    own.add_argument("release")
    add_chart(own)
    own.add_argument("-n", "--namespace", default="default", help="created if it is not there (default: default)")
    own.add_argument("--no-follow", action="store_true", help="end as soon as it is installed")
    follow.add_timeout(own)
    return own


def main(arguments: list[str] | None = None) -> int:
    """Install what the command line names."""
    args = parser().parse_args(arguments)
    return parsing.run_command("up", lambda: up(args))
