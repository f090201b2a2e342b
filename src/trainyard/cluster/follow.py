"""Follow a Helm release until its jobs have ended: pulling, waiting, epochs, images per second, time left.

trainyard follow RELEASE [-n NAMESPACE] [--timeout SECONDS]
"""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from trainyard.cluster import inventory, kube, lost_nodes, parsing, trainjobs, why
from trainyard.cluster.errors import KubeError, RefusedError, UnreachableError
from trainyard.cluster.findings import conditions, name
from trainyard.cluster.watching import Watched
from trainyard.core.exits import printable

EVERY = 2.0  # seconds between two looks into a log
GATHER = 0.3  # seconds in which changes that come together are gathered
REPLACED = 5.0  # seconds for which a release may be without a job, as when one replaces another
JOBS = ("jobs.batch", "pytorchjobs.kubeflow.org", "mpijobs.kubeflow.org")
ENDED = {"Succeeded", "Complete", "Failed"}
# The pods whose log tells how far a job is, the first that there is; of an elastic PyTorchJob the one with rank 0
LEADERS = ("master-0", "-launcher-", "-node-0-0-", "-worker-0")


def leader(job: dict, pods: list[dict]) -> dict | None:
    """Return the newest pod whose log tells how far a job is, or any of its pods while there is none."""
    mine = [
        p for p in pods if any(o["uid"] == job["metadata"]["uid"] for o in p["metadata"].get("ownerReferences", []))
    ]
    # mpi-operator's launcher belongs to a Job of its own, which carries the MPIJob's name
    mine += [
        p for p in pods if p["metadata"]["name"].startswith(f"{job['metadata']['name']}-launcher-") and p not in mine
    ]
    # a TrainJob's belong to a Job of its JobSet, which carries the TrainJob's name
    own = job["metadata"]["name"]
    mine += [p for p in pods if p["metadata"].get("labels", {}).get(trainjobs.JOBSET_NAME) == own]
    mine.sort(key=lambda p: p["metadata"]["creationTimestamp"])
    leaders = ([p for p in mine if part in p["metadata"]["name"]] for part in LEADERS)
    found = next((some for some in leaders if some), mine)
    return found[-1] if found else None


def log_reader(namespace: str) -> Callable[[str, str], str]:
    """Return a function of pod and container: the last line of its log, looked into at most every two seconds."""
    kept: dict[tuple[str, str], tuple[float, str]] = {}

    def last(pod: str, container: str) -> str:
        when, line = kept.get((pod, container), (-EVERY, ""))
        if time.monotonic() - when >= EVERY:
            try:
                line = kube.logs(pod, namespace, container, tail=1).strip()
            except UnreachableError:
                pass  # while the API server is away, the line of before counts
            except RefusedError as error:
                line = str(error)
            kept[pod, container] = time.monotonic(), line
        return line

    return last


def stage(job: dict, pods: list[dict], last_line: Callable[[str, str], str], now: datetime) -> str:
    """Say in one line what a job is doing now."""
    held = conditions(job)
    for state in ENDED & set(held):
        return state
    pod = leader(job, pods)
    if pod is None:
        return "waits for its operator" if job["kind"] != "Job" else "waits for its pod"
    if lost_nodes.is_held(pod, now):
        return f"{pod['metadata']['name']}: Terminating, and it does not end: see trainyard why"
    for status, init in why.containers(pod):
        waiting = status["state"].get("waiting", {})
        if waiting.get("reason") not in (None, "PodInitializing"):
            return f"{pod['metadata']['name']}: {waiting['reason']} {waiting.get('message', '')}".strip()
        if status["state"].get("running"):
            last = last_line(pod["metadata"]["name"], status["name"])
            return f"{status['name']}: {last}" if init else last or "starting"
    return str(pod.get("status", {}).get("phase", "Pending"))


def jobs_of(objects: dict[str, list[dict]]) -> list[dict]:
    """Return the release's own jobs; the launcher's Job that mpi-operator makes is part of its MPIJob."""
    plain = [j for j in objects["jobs.batch"] if not j["metadata"].get("ownerReferences")]
    kinds = ("pytorchjobs.kubeflow.org", "mpijobs.kubeflow.org", trainjobs.TRAINJOBS)
    return plain + [job for kind in kinds for job in objects[kind]]


def reads_log(job: dict, pods: list[dict]) -> bool:
    """Whether a job's stage may change without a change of its objects: a line of its log."""
    pod = None if ENDED & set(conditions(job)) else leader(job, pods)
    return pod is not None and any(status["state"].get("running") for status, _ in why.containers(pod))


def show_stage(seconds: float, job: str, text: str) -> str:
    """Return a job's stage as a line for people."""
    return f"{seconds:5.0f} s  {job}  {printable(text)}"


def stage_as_json(seconds: float, job: str, text: str) -> str:
    """Return a job's stage as a line for programs."""
    return json.dumps({"seconds": round(seconds, 1), "object": job, "stage": text})


def follow(
    release: str, namespace: str, kinds: set[str], timeout: float, line: Callable[[float, str, str], str] = show_stage
) -> int:
    """Print a `line` whenever a job's stage changes; return 0 when all succeeded, 1 when one failed or time is up.

    Raises KubeError where the release has no job, or the cluster cannot be read.
    """
    start, last_line = time.monotonic(), log_reader(namespace)
    shown: dict[str, str] = {}  # the stage that was printed last, by job
    absent: float | None = start - REPLACED  # since when there is no job; one that never was is not awaited
    own = f"{inventory.INSTANCE}={release}"
    with contextlib.closing(
        Watched(dict.fromkeys((*JOBS, "pods"), own) | {trainjobs.TRAINJOBS: ""}, namespace, lenient=True)
    ) as seen:
        while True:
            objects, now = seen.objects(), time.monotonic()
            objects[trainjobs.TRAINJOBS] = trainjobs.list_own(release, objects)
            jobs = [job for job in jobs_of(objects) if not kinds or job["kind"].lower() in kinds]
            absent = None if jobs else now if absent is None else absent
            if absent is not None and now - absent >= REPLACED:
                raise next(iter(seen.refused), KubeError(f"release {release} has no job in namespace {namespace}"))
            for job in jobs:
                text = stage(job, objects["pods"], last_line, datetime.now(UTC))
                if shown.get(name(job)) != text:
                    shown[name(job)] = text
                    print(line(now - start, name(job), text), flush=True)
            failed = any("Failed" in conditions(job) for job in jobs)
            if jobs and not failed and all(ENDED & set(conditions(job)) for job in jobs):
                return 0
            if failed or now - start > timeout:
                return explain_end(release, namespace, "" if failed else f"not ended after {timeout:.0f} s")
            soon = EVERY if not jobs or any(reads_log(job, objects["pods"]) for job in jobs) else timeout
            seen.wait(max(0.0, min(soon, start + timeout - now)))
            time.sleep(GATHER)


def explain_end(release: str, namespace: str, over: str) -> int:
    """Print what each object of the release waits for or failed on, and why following is over; return 1."""
    objects = inventory.read_all(release, namespace)
    print(why.show(why.explain(release, namespace, objects, datetime.now(UTC))), file=sys.stderr)
    if over:
        print(f"follow: {over}", file=sys.stderr)
    return 1


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Give a command that follows a release the option --timeout."""
    parser.add_argument(
        "--timeout", type=float, default=7 * 86400, metavar="SECONDS", help="follow at most so long (default: a week)"
    )


def parser() -> argparse.ArgumentParser:
    """Return the parser of `trainyard follow`."""
    own = parsing.command(
        "follow",
        "Follow a release until its jobs have ended: pulling, waiting, epochs, images per second, time left.",
        """
        trainyard follow run -n vision
        trainyard follow run -n vision --only pytorchjob --timeout 3600
        """,
        {0: "all jobs have succeeded", 1: "a job has failed, or time is up"},
        "Ctrl-C ends the following; the release continues.",
    )
    own.add_argument("release")
    parsing.add_namespace(own)
    own.add_argument(
        "--only", nargs="+", default=[], metavar="KIND", help="job, pytorchjob, mpijob, trainjob (default: all)"
    )
    add_timeout(own)
    own.add_argument("--json", action="store_true", help="print an object for each change: seconds, object, stage")
    return own


def main(arguments: list[str] | None = None) -> int:
    """Follow the release that the command line names."""
    args = parser().parse_args(arguments)
    only = {kind.lower() for kind in args.only}
    line = stage_as_json if args.json else show_stage
    interrupted = "stopped; the release continues"
    return parsing.run_command(
        "follow", lambda: follow(args.release, args.namespace, only, args.timeout, line), interrupted
    )
