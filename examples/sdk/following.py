"""Follow a TrainJob with more than the SDK shows: progress, all warnings, and the last messages of its pods."""

import time
from collections.abc import Iterator
from threading import Thread
from typing import Any

from kubeflow.trainer import TrainerClient
from kubernetes import client as kubernetes
from text import fail
from urllib3.exceptions import HTTPError

API = ("trainer.kubeflow.org", "v1alpha1")
LOG_TRIES, AGAIN = 6, 5.0  # seconds between them


def follow(client: TrainerClient, job: str, timeout: int = 3600) -> int:
    """Print log, progress and warnings of a job until it has ended; return 0 if it succeeded."""
    until, said = time.monotonic() + timeout, set[str]()
    readers: dict[str, Thread] = {}  # by pod: a recreated pod gets its own reader
    while True:
        if time.monotonic() > until:
            fail(f"trainjob/{job} has not ended in {timeout} s and continues; raise --timeout, or use watch.py")
        try:
            state = client.get_job(job)
            told = [*progress(client, job), *warnings(client, job)]
        except (RuntimeError, TimeoutError, HTTPError, kubernetes.ApiException) as error:
            cause: Any = error.__cause__ or error
            if getattr(cause, "status", 0) == 404:
                fail(f"trainjob/{job}: {cause.reason}; watch.py without a name lists all jobs")
            print(f"warning: retrying, since the API server did not answer: {cause}", flush=True)
            time.sleep(5)
            continue
        node = next((step for step in state.steps if step.name == "node-0"), None)
        if node and node.pod_name not in readers and node.status != "Pending":  # then the SDK's log is empty
            readers[node.pod_name] = Thread(target=_print_log, args=(client, job), daemon=True)
            readers[node.pod_name].start()
        for line in (line for line in told if line not in said):
            said.add(line)
            print(line, flush=True)
        if state.status in ("Complete", "Failed"):
            for reader in readers.values():
                reader.join(60)
            print("\n".join([*last_words(client, job), f"trainjob/{job}: {state.status}"]), flush=True)
            return int(state.status == "Failed")
        time.sleep(1)


def listed(client: TrainerClient) -> Iterator[tuple[str, str]]:
    """Names and states of the namespace's jobs; the SDK's list_jobs() fails if it cannot read any one of them."""
    api = kubernetes.CustomObjectsApi()
    found: Any = api.list_namespaced_custom_object(*API, _namespace(client), "trainjobs")
    for job in found["items"]:
        true = [entry["type"] for entry in job.get("status", {}).get("conditions", []) if entry["status"] == "True"]
        yield job["metadata"]["name"], true[-1] if true else "Running"


def progress(client: TrainerClient, job: str) -> Iterator[str]:
    """Yield what the trainer reports if Trainer's gate TrainJobStatus is on; the SDK's TrainJob leaves it out."""
    api = kubernetes.CustomObjectsApi()
    found: Any = api.get_namespaced_custom_object(*API, _namespace(client), "trainjobs", job)
    told = found.get("status", {}).get("trainerStatus")
    if told:
        left = [f"{told['estimatedRemainingSeconds']} s left"] if "estimatedRemainingSeconds" in told else []
        metrics = [f"{metric['name']} {metric['value']}" for metric in told.get("metrics") or []]
        yield ", ".join([f"progress: {told.get('progressPercentage', 0)} %", *left, *metrics])


def warnings(client: TrainerClient, job: str) -> Iterator[str]:
    """Warnings about the job's objects; the SDK's get_job_events has none of the scheduler's and of the Job's."""
    found = kubernetes.CoreV1Api().list_namespaced_event(_namespace(client), field_selector="type=Warning")
    for event in found.items:
        name = event.involved_object.name or ""
        if name == job or name.startswith(f"{job}-node-"):
            yield f"warning: {event.involved_object.kind} {name}: {event.reason}: {event.message}"


def last_words(client: TrainerClient, job: str) -> Iterator[str]:
    """Exit codes and termination messages of the pods that failed."""
    selector = f"jobset.sigs.k8s.io/jobset-name={job}"
    for pod in kubernetes.CoreV1Api().list_namespaced_pod(_namespace(client), label_selector=selector).items:
        for status in pod.status.container_statuses or []:
            end = status.state.terminated
            if end and end.exit_code:
                yield f"{pod.metadata.name} ended {end.exit_code}: {(end.message or end.reason or '').strip()[-1000:]}"


def delete(client: TrainerClient, job: str) -> None:
    """Delete a job and its pods; what it wrote to the claims stays."""
    try:
        client.delete_job(job)
    except (RuntimeError, TimeoutError) as error:
        fail(f"trainjob/{job}: {getattr(error.__cause__, 'reason', '') or error.__cause__ or error}")


def _print_log(client: TrainerClient, job: str) -> None:
    """Print the first node's log; one that a busy kubelet does not give is asked for again."""
    shown = False
    for left in reversed(range(LOG_TRIES)):
        try:
            for line in client.get_job_logs(job, follow=True):
                shown = True
                print(f"[node-0] {line}", flush=True)
            return
        except (RuntimeError, TimeoutError) as error:
            cause: Any = error.__cause__ or error
            if shown or not left or (getattr(cause, "status", None) or 500) < 500:
                print(f"warning: the log broke off: {cause}", flush=True)
                return
        time.sleep(AGAIN)


def _namespace(client: TrainerClient) -> str:
    return str(client.backend.namespace)
