"""Explains why a TrainJob of Kubeflow Trainer v2 waits or failed, from its status and that of its JobSet and Job."""

from datetime import datetime

from trainyard.cluster import versions
from trainyard.cluster.findings import Finding, age, conditions, events_of, in_namespace, name, say_times, when
from trainyard.cluster.remedies import remedy

TRAINJOBS = "trainjobs.trainer.kubeflow.org"
RUNTIMES = "trainingruntimes.trainer.kubeflow.org"
JOBSETS = "jobsets.jobset.x-k8s.io"
CHILDREN = "jobs of jobsets"  # key of the Jobs that JobSets have made
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
INDEX = "batch.kubernetes.io/job-completion-index"
VERSION = "trainyard/trainer-version"  # annotation of a TrainJob: the Trainer that values name (trainjob.version)
STUCK_AFTER = 20  # seconds after which a TrainJob that nobody has looked at is ignored
# Warnings that come with a failure or a restart, which conditions tell in full
QUIET = ("FailurePolicyAction", "BackoffLimitExceeded", "PodFailurePolicy", "Restarting")


def list_own(release: str, objects: dict[str, list[dict]]) -> list[dict]:
    """Return a release's TrainJobs, each with its family: the chart's own, and those that use its TrainingRuntime."""
    found = []
    for thing in objects.get(TRAINJOBS, []):
        label = thing["metadata"].get("labels", {}).get("app.kubernetes.io/instance")
        runtime = thing["spec"].get("runtimeRef", {})
        uses = runtime.get("kind") == "TrainingRuntime" and runtime.get("name") == release
        if label == release or (label is None and uses):
            found.append(thing | {"family": family(thing, objects)})
    return found


def family(thing: dict, objects: dict[str, list[dict]]) -> list[dict]:
    """Return a TrainJob's JobSet and its Jobs."""
    own = thing["metadata"]["name"]
    sets = [one for one in objects.get(JOBSETS, []) if one["metadata"]["name"] == own]
    return sets + [
        one for one in objects.get(CHILDREN, []) if one["metadata"].get("labels", {}).get(JOBSET_NAME) == own
    ]


def named_version(jobs: list[dict]) -> tuple[int, ...]:
    """Return major and minor of the Trainer that a release's TrainJobs are written for; empty if values name none."""
    notes = [one["metadata"].get("annotations", {}) for one in jobs]
    return next((versions.minor(note[VERSION]) for note in notes if VERSION in note), ())


def explain_unfinished(thing: dict, events: list[dict], now: datetime) -> Finding:
    """Explain a TrainJob that waits or runs."""
    jobs = [one for one in thing.get("family", []) if one["kind"] == "Job"]
    wanted = sum(one["spec"].get("parallelism", 1) for one in jobs)
    there = sum(one.get("status", {}).get(key) or 0 for one in jobs for key in ("active", "succeeded"))
    warnings = [
        e
        for one in (thing, *thing.get("family", []))
        for e in events_of(one, events)
        if not e.get("reason", "").endswith(QUIET)
    ]
    if warnings and (not jobs or there < wanted):
        text = max(warnings, key=when)["message"]
        return Finding(name(thing), "Pending", text, remedy(text))
    if not thing.get("family") and not thing.get("status") and age(thing, now) > STUCK_AFTER:
        text = f"nobody has looked at it in {age(thing, now):.0f} s"
        answer = "Kubeflow Trainer's controller is not running: kubectl get pods -A | grep kubeflow-trainer"
        return Finding(name(thing), "ignored", text, answer)
    sets = [one for one in thing.get("family", []) if one["kind"] == "JobSet"]
    again = say_times(sum(one.get("status", {}).get("restarts") or 0 for one in sets))
    for one in sets:
        if held := conditions(one).get("Restarting"):
            return Finding(name(thing), f"Restarting{again}", held.get("message", ""))
    return Finding(name(thing), (progress(thing) if jobs and there >= wanted else "Pending") + again)


def progress(thing: dict) -> str:
    """Say how far a TrainJob is that runs, where its trainers tell."""
    told = thing.get("status", {}).get("trainerStatus") or {}
    parts = ["Running"]
    if "progressPercentage" in told:
        parts.append(f"{told['progressPercentage']} %")
    if "estimatedRemainingSeconds" in told:
        parts.append(f"{told['estimatedRemainingSeconds']} s left")
    return ", ".join(parts)


def started_again(thing: dict, trainer: str) -> list[Finding]:
    """Name the JobSets of a TrainJob that a time to live deletes, where its Trainer then starts the TrainJob again.

    Trainer up to 2.3 does so with one that failed, 2.1 with any. `trainer` is its version; empty where nobody tells.
    """
    there, ended = versions.minor(trainer), "Complete" in conditions(thing)
    if there > (2, 3) or (ended and there > (2, 1)):
        return []
    found = []
    for one in thing.get("family", []):
        if one["kind"] == "JobSet" and "ttlSecondsAfterFinished" in one["spec"]:
            seconds = one["spec"]["ttlSecondsAfterFinished"]
            cause = f"{seconds} s after a failure, and then Kubeflow Trainer up to 2.3 starts the TrainJob again"
            patch = '[{"op": "remove", "path": "/spec/ttlSecondsAfterFinished"}]'
            answer = f"kubectl patch jobset {one['metadata']['name']} --type json -p '{patch}'{in_namespace(one)}"
            found.append(Finding(name(one), "deleted by its TTL", cause, f"{answer} (docs/operators.md)"))
    return found


def runtime(thing: dict, jobs: list[dict]) -> Finding:
    """Explain a TrainingRuntime: one that is deleted stays while TrainJobs use it."""
    if not thing["metadata"].get("deletionTimestamp"):
        return Finding(name(thing), "present")
    users = [j["metadata"]["name"] for j in jobs if j["spec"]["runtimeRef"].get("name") == thing["metadata"]["name"]]
    text = f"it is being deleted, and TrainJobs use it still: {', '.join(users) or 'none of this release'}"
    delete = f"wait until they have ended, or kubectl delete trainjob {' '.join(users)}{in_namespace(thing)}"
    answer = delete if users else f"kubectl get trainjobs{in_namespace(thing)}: which ones name it?"
    return Finding(name(thing), "Terminating", text, answer)
