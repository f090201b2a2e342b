"""List all runs of a namespace or of all: state, step, time left, top-1, images/s, goodput, GPU hours, cost.

    trainyard runs [-n NAMESPACE | -A] [--claim CLAIM] [--watch] [--json]

States come from the jobs and pods, numbers from the lines that each job's first process prints.
"""

import argparse
import contextlib
import json
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from trainyard.cluster import follow, inventory, jobs, kube, log_progress, parsing, trainjobs
from trainyard.cluster.errors import KubeError, RefusedError, UnreachableError
from trainyard.cluster.watching import Watched
from trainyard.core.exits import printable

if TYPE_CHECKING:
    from rich.table import Table

TAIL = 1000  # lines of a log that are read at first; then those since the look before
EVERY = 3.0  # seconds between two looks into a log
AT_ONCE = 16  # logs that are read at a time
TELLING = ("Running", "Succeeded", "Failed")  # states in which a job's log may tell how far it is


@dataclass(frozen=True)
class Run:
    """One job of a release, as the table and the JSON show it; None for what is not known."""

    namespace: str
    release: str
    kind: str  # pytorchjob, mpijob, trainjob, dataset or evaluate
    job: str
    nodes: int | None
    processes: int | None  # of each node
    spares: int  # pods that wait, with their GPUs, for one that trains to be lost
    state: str
    step: int | None  # of a preparation: images
    steps: int | None
    eta_seconds: int | None
    top1: float | None  # percent
    images_per_second: float | None
    goodput: float | None  # 0 to 1
    gpu_hours: float
    cost: float | None


class Log(NamedTuple):
    """The part of a container's log that was read."""

    when: float  # on the monotonic clock
    over: bool  # whether the container had ended by then
    found: log_progress.RunProgress


class Logs:
    """Reads what jobs print, each time only what is new."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, str, int], Log] = {}  # by uid of the pod, container and its restarts
        self.refused: list[str] = []  # what the API server said where this user may not read a log

    def look(self, pod: dict) -> log_progress.RunProgress:
        """Return how far the job of a pod is; what was known before while the API server is away."""
        meta = pod["metadata"]
        status = next(iter(pod.get("status", {}).get("containerStatuses", [])), None)
        if status is None or "waiting" in status["state"]:
            return log_progress.RunProgress()
        key, over = (meta["uid"], status["name"], status.get("restartCount", 0)), "terminated" in status["state"]
        now = time.monotonic()
        known = self._read.get(key, Log(-math.inf, False, log_progress.RunProgress()))
        if not known.over and (over or now - known.when >= EVERY):
            new: dict[str, Any] = {"since": int(now - known.when) + 2} if key in self._read else {"tail": TAIL}
            try:
                text = kube.logs(meta["name"], meta["namespace"], status["name"], **new)
                known = self._read[key] = Log(now, over, log_progress.read(text, known.found))
            except UnreachableError:
                pass
            except RefusedError as error:
                self.refused.append(str(error))
        return known.found


def table_of(
    objects: dict[str, list[dict]], logs: Logs, now: datetime, claim: str = "", price: float | None = None
) -> list[Run]:
    """Return the runs among a cluster's objects (jobs.WATCHED), in the order of namespace, release and age."""
    runtimes = objects[trainjobs.RUNTIMES]
    found = [one for one in jobs.all_jobs(objects) if not claim or claim in jobs.claims(one[1], runtimes)]
    found.sort(key=lambda one: (one[1]["metadata"]["namespace"], one[0], one[1]["metadata"]["creationTimestamp"]))
    pods = group_pods(objects["pods"])

    def row(one: tuple[str, dict]) -> Run:
        release, job = one
        pod = follow.leader(job, pods.get((job["metadata"]["namespace"], release), []))
        hours = jobs.gpus(job, runtimes) * jobs.seconds_held(job, pod, now) / 3600
        return run_of(release, job, pod, logs, jobs.state(job, pod, now), hours=hours, price=price)

    with ThreadPoolExecutor(AT_ONCE) as pool:  # each may read a log
        return list(pool.map(row, found))


def run_of(
    release: str, job: dict, pod: dict | None, logs: Logs, state: str, *, hours: float, price: float | None
) -> Run:
    """Return what is known of a job; `pod` is the one whose log tells how far it is, if it exists."""
    far = logs.look(pod) if pod and state in TELLING else log_progress.RunProgress()
    nodes, processes, spares = jobs.size(job)
    return Run(
        namespace=job["metadata"]["namespace"],
        release=release,
        kind=jobs.kind(job),
        job=job["metadata"]["name"],
        nodes=nodes,
        processes=processes,
        spares=spares,
        state=state,
        step=far.step,
        steps=far.steps,
        eta_seconds=far.eta_seconds if state == "Running" else None,
        top1=far.top1,
        images_per_second=far.images_per_second,
        goodput=far.goodput,
        gpu_hours=round(hours, 3),
        cost=None if price is None else round(hours * price, 2),
    )


def group_pods(pods: list[dict]) -> dict[tuple[str, str], list[dict]]:
    """Return pods by namespace and release: a team has hundreds of jobs, and thousands of pods."""
    found: dict[tuple[str, str], list[dict]] = {}
    for pod in pods:
        found.setdefault((pod["metadata"]["namespace"], jobs.release_of(pod)), []).append(pod)
    return found


def read(namespace: str | None) -> dict[str, list[dict]]:
    """Read jobs and pods of a namespace, or of all for None, and say what this user may not list; raises KubeError."""
    refused: list[dict] = []
    found = inventory.list_kinds(jobs.WATCHED, namespace, refused)
    if refused and not holds_jobs(found):
        raise KubeError(refused[0]["said"])
    for one in refused:
        print(printable(f"runs: not looked at: {one['said']}"), file=sys.stderr)
    return found


def holds_jobs(objects: dict[str, list[dict]]) -> bool:
    """Whether there is a job of any kind."""
    return any(objects[kind] for kind in (*follow.JOBS, trainjobs.TRAINJOBS))


COLUMNS = (
    "NAMESPACE",
    "RELEASE",
    "KIND",
    "NODES",
    "STATE",
    "STEP",
    "ETA",
    "TOP-1 %",
    "IMG/S",
    "GOODPUT",
    "GPU H",
    "COST",
)
LEFT = ("NAMESPACE", "RELEASE", "KIND", "STATE")


def cells(run: Run) -> dict[str, str]:
    """Return what the table shows of a run, by column; empty for what is not known."""
    size = f"{run.nodes or '?'}x{run.processes or '?'}" + (f" + {run.spares} spare" if run.spares else "")
    return {
        "NAMESPACE": run.namespace,
        "RELEASE": run.release,
        "KIND": run.kind,
        "NODES": size if run.kind in jobs.TRAINS else str(run.nodes),
        "STATE": printable(run.state),
        "STEP": "" if run.step is None else f"{run.step}/{run.steps or '?'}",
        "ETA": "" if run.eta_seconds is None else str(timedelta(seconds=run.eta_seconds)),
        "TOP-1 %": "" if run.top1 is None else f"{run.top1:.2f}",
        "IMG/S": "" if run.images_per_second is None else f"{run.images_per_second:,.0f}",
        "GOODPUT": "" if run.goodput is None else f"{100 * run.goodput:.0f} %",
        "GPU H": f"{run.gpu_hours:,.1f}" if run.gpu_hours else "",
        "COST": "" if run.cost is None else f"{run.cost:,.2f}",
    }


def drawn(rows: list[Run], everywhere: bool, priced: bool) -> "Table":
    """Lay runs out as a table for people."""
    from rich.table import Table

    shown = [c for c in COLUMNS if (everywhere or c != "NAMESPACE") and (priced or c != "COST")]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in shown:
        table.add_column(column, justify="left" if column in LEFT else "right", no_wrap=True)
    for row in rows:
        found = cells(row)
        table.add_row(*(found[column] for column in shown), style=STYLES.get(row.state, ""))
    return table


STYLES = {"Running": "green", "Succeeded": "dim", "Failed": "red"}


def as_json(rows: list[Run], indent: int | None = 2) -> str:
    """Write runs as a JSON list."""
    return json.dumps([asdict(row) for row in rows], indent=indent)


def show(args: argparse.Namespace) -> int:
    """Print the runs once."""
    from rich.console import Console

    logs = Logs()
    rows = table_of(read(args.in_namespace), logs, datetime.now(UTC), args.claim, args.price_per_gpu_hour)
    for said in logs.refused[:1]:  # each names another pod
        print(printable(f"runs: not looked at: {said}"), file=sys.stderr)
    if args.json:
        print(as_json(rows))
    elif not rows:
        print(f"no runs {scope(args)}", file=sys.stderr)
    else:
        wide = None if sys.stdout.isatty() else 1000  # a pipe gets whole lines
        table = drawn(rows, args.all_namespaces, args.price_per_gpu_hour is not None)
        Console(width=wide, highlight=False).print(table)
    return 0


def scope(args: argparse.Namespace) -> str:
    """Say where runs were looked for."""
    where = "in any namespace" if args.all_namespaces else f"in namespace {args.namespace}"
    return f"on claim {args.claim} {where}" if args.claim else where


def watch(args: argparse.Namespace) -> int:
    """Draw the table again whenever it changes, or print a line of JSON, until interrupted."""
    from rich.console import Console
    from rich.live import Live

    logs, before = Logs(), ""
    console = Console(highlight=False)
    live = contextlib.nullcontext() if args.json else Live(console=console, auto_refresh=False)
    with contextlib.closing(Watched(jobs.WATCHED, args.in_namespace, lenient=True)) as seen, live as screen:
        if seen.refused and not holds_jobs(seen.objects()):
            raise seen.refused[0]
        while True:
            rows = table_of(seen.objects(), logs, datetime.now(UTC), args.claim, args.price_per_gpu_hour)
            if (text := as_json(rows, indent=None)) != before:
                before = text
                if screen is None:
                    print(text, flush=True)
                elif rows:
                    screen.update(drawn(rows, args.all_namespaces, args.price_per_gpu_hour is not None), refresh=True)
                else:
                    screen.update(f"no runs {scope(args)}", refresh=True)
            seen.wait(EVERY)
            time.sleep(follow.GATHER)


def parser() -> argparse.ArgumentParser:
    """Return the parser of `trainyard runs`."""
    own = parsing.command(
        "runs",
        "List all runs of a namespace: state, step, time left, top-1, images/s, goodput, GPU hours and cost.",
        """
        trainyard runs -n vision
        trainyard runs -A --watch
        trainyard runs -n vision --claim imagenet-data
        trainyard runs -A --json | jq '.[] | select(.state == "Failed") | .release'
        trainyard runs -n vision --price-per-gpu-hour 2.50
        """,
        {0: "the runs were listed, also where there are none"},
        "Preparations and evaluations are listed too. `trainyard why RELEASE` says why a run waits or failed.",
    )
    where = own.add_mutually_exclusive_group()
    parsing.add_namespace(where)
    where.add_argument("-A", "--all-namespaces", action="store_true", help="list the runs of all namespaces")
    own.add_argument("--claim", default="", metavar="CLAIM", help="only runs that read or write this claim")
    own.add_argument("-w", "--watch", action="store_true", help="keep the table current until interrupted")
    own.add_argument(
        "--price-per-gpu-hour", type=float, metavar="PRICE", help="show what the runs have cost so far, in its currency"
    )
    own.add_argument("--json", action="store_true", help="print a JSON list; with --watch one on a line at each change")
    return own


def main(arguments: list[str] | None = None) -> int:
    """List the runs that the command line asks for."""
    args = parser().parse_args(arguments)
    args.in_namespace = None if args.all_namespaces else args.namespace

    def run() -> int:
        if args.watch and not args.json and not sys.stdout.isatty():
            raise parsing.WrongInputError("--watch draws on a terminal: add --json, or leave --watch out")
        return watch(args) if args.watch else show(args)

    return parsing.run_command("runs", run)
