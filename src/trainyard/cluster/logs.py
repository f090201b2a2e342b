"""Print what a release's pods print: rank 0 of the training unless another rank, all pods or another part is asked for.

trainyard logs RELEASE [-n NAMESPACE] [--rank N | --all] [--part train|dataset|evaluate|filebrowser] [-f]
"""

import argparse
import json
import math
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from trainyard.cluster import jobs, kube, parsing, pods
from trainyard.cluster.errors import KubeError, RefusedError, UnreachableError
from trainyard.cluster.watching import PATIENCE
from trainyard.core.exits import printable

EVERY = 2.0  # seconds between two looks at a pod that has not started, or whose connection broke


class LogPlace(NamedTuple):
    """Which release's logs are printed, and how."""

    release: str
    namespace: str
    part: str
    tail: int | None
    as_json: bool


class Printer:
    """Prints lines of several pods, whole ones, from several threads."""

    def __init__(self, as_json: bool, prefixed: bool) -> None:
        self._json, self._prefixed = as_json, prefixed
        self._one_at_a_time = threading.Lock()

    def line(self, pod: str, short: str, container: str, text: str) -> None:
        """Print a line of a pod."""
        if self._json:
            text = json.dumps({"pod": pod, "container": container, "line": text})
        else:
            text = f"{short} | {printable(text)}" if self._prefixed else printable(text)
        with self._one_at_a_time:
            print(text, flush=True)


def lines_after(lines: Iterator[str], after: str) -> Iterator[tuple[str, str]]:
    """Yield time and text of the lines that are later than a time; the API writes the time before each."""
    for line in lines:
        when, _, text = line.partition(" ")
        if when > after:
            yield when, text


def show(place: LogPlace, found: pods.Part, numbers: list[int]) -> int:
    """Print the logs so far; return 1 where none of the pods has started."""
    printer, started = Printer(place.as_json, len(numbers) > 1), False
    for number in numbers:
        pod = found.pods.get(number)
        inside = pods.container(pod) if pod else None
        if pod is None or inside is None:
            what = pod["metadata"]["name"] if pod else f"pod {number} of {found.name}"
            why = f"trainyard why {place.release} -n {place.namespace} says why"
            print(f"logs: {what} has not started: {why}", file=sys.stderr)
            continue
        started = True
        name = pod["metadata"]["name"]
        try:
            for text in kube.log_lines(name, place.namespace, inside.name, tailLines=place.tail):
                printer.line(name, found.short(number), inside.name, text)
        except KubeError as error:  # of one whose node does not answer; the others are printed
            if len(numbers) == 1:
                raise
            print(printable(f"logs: {name}: {error}"), file=sys.stderr)
    return 0 if started else 1


class NewestPods:
    """The pods of a part as they are now, read at most every two seconds for the threads of all pods together."""

    def __init__(self, place: LogPlace, job: str) -> None:
        self._place, self._job = place, job
        self._one_at_a_time = threading.Lock()
        self._when, self._found = -math.inf, pods.Part(job, {})

    def look(self) -> pods.Part:
        """Return the part; raises KubeError."""
        with self._one_at_a_time:
            if time.monotonic() - self._when >= EVERY:
                place = self._place
                self._found = pods.newest(place.release, place.namespace, place.part, self._job)
                self._when = time.monotonic()
            return self._found


def stream(place: LogPlace, newest: NewestPods, number: int, printer: Printer) -> None:
    """Print what the pods of one number print until the job has ended: also one that replaces another."""
    printed: dict[tuple[str, str, int], str] = {}  # the time of the last line, by the pod's uid, container and restarts
    over: set[tuple[str, str, int]] = set()
    away: float | None = None  # since when the API server is
    while True:
        try:
            found, away = newest.look(), None
            pod = found.pods.get(number)
            inside = pods.container(pod) if pod else None
            key = (pod["metadata"]["uid"], inside.name, inside.restarts) if pod and inside else None
            if pod and inside and key and key not in over:
                for when, text in new_lines(place, pod, inside.name, printed.get(key, "")):
                    printer.line(pod["metadata"]["name"], found.short(number), inside.name, text)
                    printed[key] = when
                if inside.ended:  # before its log was read to the end
                    over.add(key)
                    continue
            elif found.ended():
                return
        except UnreachableError:
            away = away or time.monotonic()
            if time.monotonic() - away > PATIENCE:
                raise
        time.sleep(EVERY)


def new_lines(place: LogPlace, pod: dict, container: str, after: str) -> Iterator[tuple[str, str]]:
    """Yield time and text of a container's lines after a time as they come; none where there is no log yet."""
    query: dict[str, Any] = {"tailLines": place.tail}
    if after:  # in whole seconds, as the API counts
        query = {"sinceTime": f"{datetime.fromisoformat(after).astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"}
    try:
        name = pod["metadata"]["name"]
        lines = kube.log_lines(name, place.namespace, container, follow=True, timestamps=True, **query)
        yield from lines_after(lines, after)
    except RefusedError as error:
        if error.status == 403:  # this user may not read it, now or later
            raise


def follow(place: LogPlace, found: pods.Part, numbers: list[int]) -> int:
    """Print logs as they are written, until the job ends."""
    printer, newest = Printer(place.as_json, len(numbers) > 1), NewestPods(place, found.name)
    failed: list[Exception] = []

    def print_all(number: int) -> None:
        try:
            stream(place, newest, number, printer)
        except Exception as error:  # of a thread; raised again below
            failed.append(error)

    # Daemons, so that an interrupt ends them
    threads = [threading.Thread(target=print_all, args=(number,), daemon=True) for number in numbers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not failed:
        time.sleep(0.1)
    if failed:
        raise failed[0]
    return 0


def numbers_of(found: pods.Part, args: argparse.Namespace) -> list[int]:
    """Return the numbers of the pods whose logs are asked for."""
    if not args.all:
        return found.holding(args.rank)
    nodes = jobs.size(found.job).nodes if found.job else None
    return sorted({*found.pods, *range(nodes or 0)})


def parser() -> argparse.ArgumentParser:
    """Return the parser of `trainyard logs`."""
    own = parsing.command(
        "logs",
        "Print what a release's pods print: rank 0 of the training, unless another one is asked for.",
        """
        trainyard logs run -n vision -f
        trainyard logs run -n vision --rank 8 --tail 100
        trainyard logs run -n vision --all
        trainyard logs run -n vision --part dataset -f
        """,
        {0: "the logs were printed; with -f, the job has ended", 1: "no pod has started yet"},
        "A pod prints what all of its ranks print. Logs of pods that are gone are on the results claim:\n"
        "trainyard fetch RELEASE runs/RELEASE/logs FOLDER.",
    )
    own.add_argument("release")
    parsing.add_namespace(own)
    which = own.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, default=0, metavar="N", help="the pod that runs rank N (default: 0)")
    which.add_argument("--all", action="store_true", help="all pods, each line behind its pod's name")
    own.add_argument("--part", choices=tuple(pods.PARTS), default="train", help="part of the release (default: train)")
    own.add_argument("-f", "--follow", action="store_true", help="print lines as they come, until the job ends")
    own.add_argument("--tail", type=int, metavar="N", help="begin with the last N lines")
    own.add_argument("--json", action="store_true", help="print an object for each line: pod, container, line")
    return own


def main(arguments: list[str] | None = None) -> int:
    """Print the logs that the command line asks for."""
    args = parser().parse_args(arguments)

    def run() -> int:
        if args.rank < 0:
            raise KubeError(f"--rank is {args.rank}: ranks are counted from 0")
        place = LogPlace(args.release, args.namespace, args.part, args.tail, args.json)
        found = pods.read(args.release, args.namespace, args.part)
        return (follow if args.follow else show)(place, found, numbers_of(found, args))

    return parsing.run_command("logs", run)
