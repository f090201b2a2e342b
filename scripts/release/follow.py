"""Follow a Helm release until its jobs have ended: pulling, waiting, epochs, images per second, time left.

scripts/follow RELEASE [-n NAMESPACE] [--timeout SECONDS]
"""

import argparse
import sys
import time
from datetime import UTC, datetime

from release import kube, trainjobs, why

EVERY = 2.0  # seconds between looks
ENDED = {"Succeeded", "Complete", "Failed"}
LEADERS = ("master-0", "launcher", "-node-0-0-")  # the pods whose log tells how far a job is


def leader(job: dict, pods: list[dict]) -> dict | None:
    """Return the newest pod whose log tells how far a job is, or any of its pods while there is none."""
    mine = [
        p for p in pods if any(o["uid"] == job["metadata"]["uid"] for o in p["metadata"].get("ownerReferences", []))
    ]
    # mpi-operator's launcher belongs to a Job of its own, which carries the MPIJob's name
    mine += [
        p for p in pods if p not in mine and p["metadata"]["name"].startswith(f"{job['metadata']['name']}-launcher-")
    ]
    # a TrainJob's belong to a Job of its JobSet, which carries the TrainJob's name
    own = job["metadata"]["name"]
    mine += [p for p in pods if p["metadata"].get("labels", {}).get(trainjobs.JOBSET_NAME) == own]
    mine.sort(key=lambda p: p["metadata"]["creationTimestamp"])
    leaders = [p for p in mine if any(part in p["metadata"]["name"] for part in LEADERS)]
    return (leaders or mine or [None])[-1]


def stage(job: dict, pods: list[dict], namespace: str) -> str:
    """Say in one line what a job is doing now."""
    held = why.conditions(job)
    for state in ENDED & set(held):
        return state
    pod = leader(job, pods)
    if pod is None:
        return "waits for its operator" if job["kind"] != "Job" else "waits for its pod"
    for status, init in why.containers(pod):
        waiting = status["state"].get("waiting", {})
        if waiting.get("reason") not in (None, "PodInitializing"):
            return f"{pod['metadata']['name']}: {waiting['reason']} {waiting.get('message', '')}".strip()
        if status["state"].get("running"):
            last = kube.logs(pod["metadata"]["name"], namespace, status["name"], tail=1).strip()
            return f"{status['name']}: {last}" if init else last or "starting"
    return pod.get("status", {}).get("phase", "Pending")


def jobs_of(objects: dict[str, list[dict]]) -> list[dict]:
    """Return the release's own jobs; the launcher's Job that mpi-operator makes is part of its MPIJob."""
    plain = [j for j in objects["jobs.batch"] if not j["metadata"].get("ownerReferences")]
    kinds = ("pytorchjobs.kubeflow.org", "mpijobs.kubeflow.org", trainjobs.TRAINJOBS)
    return plain + [job for kind in kinds for job in objects[kind]]


def follow(release: str, namespace: str, kinds: set[str], timeout: float) -> int:
    """Print a line whenever a job's stage changes; return 0 when all succeeded, 1 when one failed or time is up."""
    start, shown = time.monotonic(), {}
    while True:
        objects = kube.read_release(release, namespace)
        jobs = [job for job in jobs_of(objects) if not kinds or job["kind"].lower() in kinds]
        if not jobs:
            raise kube.KubeError(f"release {release} has no job in namespace {namespace}")
        for job in jobs:
            text = stage(job, objects["pods"], namespace)
            if shown.get(why.name(job)) != text:
                shown[why.name(job)] = text
                print(f"{time.monotonic() - start:5.0f} s  {why.name(job)}  {text}", flush=True)
        failed = any("Failed" in why.conditions(job) for job in jobs)
        if not failed and all(ENDED & set(why.conditions(job)) for job in jobs):
            return 0
        if failed or time.monotonic() - start > timeout:
            objects["missing_kinds"] = kube.missing_kinds()
            print(why.show(why.explain(release, namespace, objects, datetime.now(UTC))), file=sys.stderr)
            if not failed:
                print(f"follow: not ended after {timeout:.0f} s", file=sys.stderr)
            return 1
        time.sleep(EVERY)


def main() -> int:
    """Follow the release named on the command line."""
    parser = argparse.ArgumentParser(prog="scripts/follow", description=__doc__.splitlines()[0])
    parser.add_argument("release")
    parser.add_argument("-n", "--namespace", default="default")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="KIND", help="job, pytorchjob, mpijob, trainjob (default: all)"
    )
    parser.add_argument("--timeout", type=float, default=7 * 86400, help="seconds to follow at most (default: a week)")
    args = parser.parse_args()
    try:
        return follow(args.release, args.namespace, {kind.lower() for kind in args.only}, args.timeout)
    except kube.KubeError as error:
        print(f"follow: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nfollow: stopped looking; the release goes on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
