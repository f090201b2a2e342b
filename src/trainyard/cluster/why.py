"""Say, for each object of a Helm release, what it waits for or failed on, and the remedy.

    trainyard why RELEASE [-n NAMESPACE]

Reads conditions, events and termination messages; the answer also for what never started a container.
"""

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from trainyard.cluster import (
    claims,
    crds,
    inventory,
    kube,
    links,
    lost_nodes,
    parsing,
    queues,
    recreated,
    trainjobs,
)
from trainyard.cluster.errors import RefusedError, UnreachableError
from trainyard.cluster.findings import Finding, age, conditions, events_of, group_events, name, readiness, since, when
from trainyard.cluster.pod_remedies import CONTAINERS
from trainyard.cluster.remedies import EXIT_CODES, JOBS, MEMORY, SECRETS, UNPREPARED, remedy
from trainyard.core.exits import printable

STUCK_AFTER = 20  # seconds after which an object without any status means that nobody looks at it
LOOKS = 16  # pods whose log is looked at; logs that are read at a time
UNANSWERED = "the kubelet of {} does not answer the API server, so nobody can read the log: after 50 s the node is lost"
CLOCKS = 5.0  # seconds by which the clocks of machines may differ
SUCCEEDED = ("Succeeded", "Complete")  # conditions of jobs
UNHEALTHY = "nothing listens there: set filebrowser.port to the port of filebrowser.image's server, and see its log"


def explain_store(thing: dict) -> Finding:
    """Explain an ExternalSecret."""
    ready = readiness(thing)
    if not ready:
        cause = "no operator has looked at it"
        return Finding(name(thing), "ignored", cause, "install External Secrets Operator, or make the Secret yourself")
    if ready["status"] == "True":
        return Finding(name(thing), "Ready")
    known = remedy(ready.get("message", ""), SECRETS) or "see kubectl describe externalsecret"
    return Finding(name(thing), "not ready", ready.get("message", ""), known)


def explain_job(
    thing: dict,
    events: list[dict],
    now: datetime,
    workloads: Sequence[dict] | None = (),
    classes: Sequence[dict] | None = None,
) -> Finding:
    """Explain a job of any kind; of Kueue its namespace's Workloads and the priority classes, None if not known."""
    held = conditions(thing)
    if "Failed" in held:
        text = " ".join(filter(None, (held["Failed"].get("reason"), held["Failed"].get("message"))))
        return Finding(
            name(thing), "Failed", held["Failed"].get("message", ""), remedy(text, JOBS) or "see its pods below"
        )
    for state in SUCCEEDED:
        if state in held:
            return Finding(name(thing), state)
    if "Suspended" in held or thing["spec"].get("suspend") or thing["spec"].get("runPolicy", {}).get("suspend"):
        return queues.explain_suspension(thing, held, workloads, classes, now)
    if thing["kind"] == "TrainJob":
        return trainjobs.explain_unfinished(thing, events, now)
    return explain_unfinished(thing, held, events, now)


def explain_unfinished(thing: dict, held: dict[str, dict], events: list[dict], now: datetime) -> Finding:
    """Explain a job that waits or runs."""
    warnings = [e for e in events_of(thing, events) if not recreated.tells(e)]
    if warnings and ("Running" not in held or (lacks_pods(thing) and warnings[-1].get("reason") == "FailedCreatePod")):
        text = warnings[-1]["message"]
        return Finding(name(thing), next(iter(held), "Pending"), text, remedy(text))
    if not thing.get("status") and thing["kind"] != "Job" and age(thing, now) > STUCK_AFTER:
        operator = inventory.OPERATORS[f"{thing['kind'].lower()}s.kubeflow.org"]
        return Finding(
            name(thing),
            "ignored",
            f"no operator has looked at it in {age(thing, now):.0f} s",
            f"{operator} is not running or does not watch this namespace: kubectl get pods -A | grep {operator}",
        )
    if again := recreated.explain(thing, "Restarting" if "Restarting" in held else "Running", events):
        return again
    if "Restarting" in held:
        return Finding(name(thing), "Restarting", held["Restarting"].get("message", ""))
    return Finding(name(thing), "Running" if "Running" in held or thing.get("status", {}).get("active") else "Pending")


def drop_overcome_events(thing: dict, events: list[dict], pods: list[dict], now: datetime) -> list[dict]:
    """Return events without what kept a job's pods from being made until one was made; they stay for an hour."""
    uid = thing["metadata"]["uid"]
    owned = [p for p in pods if any(o.get("uid") == uid for o in p["metadata"].get("ownerReferences") or [])]
    if not owned:
        return events
    newest = min(age(p, now) for p in owned) + CLOCKS
    return [
        e
        for e in events
        if e.get("type") != "Warning" or recreated.tells(e) or not when(e) or since(when(e), now) < newest
    ]


def lacks_pods(thing: dict) -> bool:
    """Whether a PyTorchJob or MPIJob that runs has fewer pods than it asks for, as when one cannot be recreated."""
    kinds = thing["spec"].get("pytorchReplicaSpecs") or thing["spec"].get("mpiReplicaSpecs") or {}
    held = thing.get("status", {}).get("replicaStatuses") or {}
    there = sum(kind.get("active", 0) + kind.get("succeeded", 0) for kind in held.values())
    return bool(there < sum(kind.get("replicas", 1) for kind in kinds.values()))


def explain_deployment(thing: dict, pods: list[dict], events: list[dict]) -> Finding:
    """Explain the file browser's Deployment: it serves, or its pods cannot be made, or they do not listen."""
    held = conditions(thing)
    if "ReplicaFailure" in held:
        text = held["ReplicaFailure"].get("message", "")
        return Finding(name(thing), "Failed", text, remedy(text) or "see kubectl describe replicaset")
    if "Available" in held:
        return Finding(name(thing), "Available")
    wanted = thing["spec"]["selector"]["matchLabels"].items()
    for pod in pods:
        if not (wanted <= pod["metadata"].get("labels", {}).items() and is_running(pod)):
            continue
        if warnings := [e for e in events_of(pod, events) if e.get("reason") == "Unhealthy"]:
            return Finding(name(thing), "not ready", warnings[-1]["message"], UNHEALTHY)
    return Finding(name(thing), "not ready")


def is_running(pod: dict) -> bool:
    """Whether a pod's containers run; one that ended or cannot start has a cause of its own."""
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return bool(statuses) and all("running" in one["state"] for one in statuses)


def containers(pod: dict) -> Iterator[tuple[dict, bool]]:
    """Yield a pod's container statuses, and whether each is an init container that must end before the others start.

    Those that run beside the main one (extraContainers) are left out once the pod is over: then they were stopped.
    """
    status = pod.get("status", {})
    beside = {one["name"] for one in pod["spec"].get("initContainers", []) if one.get("restartPolicy") == "Always"}
    for one in status.get("initContainerStatuses", []):
        if one["name"] not in beside or status.get("phase") in ("Pending", "Running"):
            yield one, one["name"] not in beside
    for one in status.get("containerStatuses", []):
        yield one, False


def last_word(message: str) -> str:
    """Return the line of a termination message that says most: its last error; mpirun draws boxes below."""
    lines = [line.strip() for line in message.splitlines() if re.search(r"\w", line)] or [message]
    return next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), lines[-1])


def explain_exit(state: dict, label: str) -> Finding | None:
    """Explain a container that ended with an error."""
    code = state.get("exitCode", 0)
    if not code:
        return None
    message = state.get("message", "").strip()
    if state.get("reason") == "OOMKilled":
        return Finding(
            label,
            "OOMKilled",
            "the container used more memory than its limit",
            MEMORY,
        )
    known = EXIT_CODES.get(code, "")
    cause = last_word(message) if message else known or state.get("reason", "")
    return Finding(label, f"exit {code}", cause or known, remedy(message) or known or "see its log: kubectl logs")


def explain_container(
    status: dict, init: bool, pod: dict, namespace: str, *, look: bool, refused: list[str]
) -> Finding | None:
    """Explain one container: what it waits for, how it ended, or what it says while it checks."""
    where = f"{name(pod)} {status['name']}"
    state, waiting = status["state"], status["state"].get("waiting", {})
    over = state.get("terminated") or status.get("lastState", {}).get("terminated")
    if over and (finding := explain_exit(over, where)) and not (state.get("running") and not init):
        return finding
    if init and over and (said := over.get("message", "").strip()):
        # A preflight that fails ends well, with its message: the main container, which the operators look at, ends 2
        return Finding(where, "failed", said.splitlines()[-1], remedy(said) or EXIT_CODES[2])
    if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
        text = f"{waiting['reason']}: {waiting.get('message', '')}".strip(": ")
        return Finding(where, "waiting", text, remedy(text))
    if state.get("running") and (init or look):
        return explain_log(pod, status, init, namespace, refused)
    return None


def explain_log(pod: dict, status: dict, init: bool, namespace: str, refused: list[str]) -> Finding | None:
    """Explain a container that runs by the end of its log; `refused` gets what keeps this user from reading it."""
    where = f"{name(pod)} {status['name']}"
    try:
        log = kube.logs(pod["metadata"]["name"], namespace, status["name"], tail=links.LAST_LINES).strip()
    except UnreachableError:
        return Finding(where, "running, as far as is known", UNANSWERED.format(links.node(pod)))
    except RefusedError as error:
        refused.append(str(error))
        return None
    last = (log.splitlines() or [""])[-1].strip()
    if init or last.startswith(("preflight:", "launch: waiting", "prepare: waiting")):
        # What one waits for is another's fault; only what keeps pods apart, or a person brings, has a remedy here
        known = remedy(last, CONTAINERS)
        return Finding(where, "running", last, "" if init and "Secret" not in last else known)
    if slow := links.said_of_network(log):
        return Finding(where, "running", slow)
    return None


def add_dataset_remedy(findings: list[Finding], jobs: list[dict]) -> list[Finding]:
    """Give pods that wait for a dataset a remedy where no Job of their release is making it."""
    makers = [j for j in jobs if j["metadata"].get("labels", {}).get("app.kubernetes.io/name") == "dataset"]
    if any(not {"Complete", "Failed"} & set(conditions(j)) for j in makers):
        return findings
    return [
        f._replace(remedy=UNPREPARED) if re.search(r"^preflight: waiting for .*manifest\.json", f.cause) else f
        for f in findings
    ]


def image_being_pulled(pod: dict, events: list[dict]) -> str:
    """Return the image that a pod's node pulls now; nothing where it pulls none."""
    mine = [e for e in events if e["involvedObject"].get("uid") == pod["metadata"]["uid"]]
    done = " ".join(e["message"] for e in mine if e.get("reason") == "Pulled")
    begun = " ".join(e["message"] for e in mine if e.get("reason") == "Pulling")
    return next((one for one in re.findall(r'"([^"]+)"', begun) if f'"{one}"' not in done), "")


def explain_pod(
    thing: dict,
    events: list[dict],
    namespace: str,
    now: datetime,
    *,
    look: bool = True,
    nodes: Mapping[str, dict] | None = None,
    refused: list[str] | None = None,
) -> list[Finding]:
    """Explain a pod: why it is not scheduled, what a container waits for, or how one ended.

    With `refused`, what the API server says where this user may not read the pod's log is added to it.
    """
    label, status = name(thing), thing.get("status", {})
    phase, warnings = status.get("phase", "?"), events_of(thing, events)
    if lost := lost_nodes.explain(thing, events, now, nodes or {}):
        return [lost]
    if phase == "Failed" and status.get("message"):  # the kubelet's own word: evicted, node shut down, deadline
        text = f"{status.get('reason', '')}: {status['message']}"
        answer = replace_worker(thing, namespace) or remedy(text) or "see kubectl describe pod"
        return [Finding(label, status.get("reason", phase), text, answer)]
    refused = [] if refused is None else refused
    said = (
        explain_container(one, init, thing, namespace, look=look, refused=refused) for one, init in containers(thing)
    )
    found = list(filter(None, said))
    if (
        not found and phase == "Pending" and (image := image_being_pulled(thing, events))
    ):  # it has a node: older warnings are over
        found.append(Finding(label, "Pending", f"its node pulls the image {image}, once: a large one takes minutes"))
    if not found and phase == "Pending" and (text := said_of_pending(thing, warnings)):
        found.append(Finding(label, "Pending", text, remedy(text)))
    scheduler = thing["spec"].get("schedulerName", "default-scheduler")
    if not found and phase == "Pending" and not status.get("conditions") and age(thing, now) > STUCK_AFTER:
        text = f"no scheduler has looked at it in {age(thing, now):.0f} s; it asks for {scheduler}"
        found.append(
            Finding(label, "Pending", text, "start that scheduler, or correct global.scheduling.schedulerName")
        )
    return found or [Finding(label, phase)]


def said_of_pending(thing: dict, warnings: list[dict]) -> str:
    """Return what the scheduler says of a pod, else the last warning; once the pod has a node, that is over.

    The condition is there when events are gone or may not be read, and is current where a series of them is not.
    """
    held = thing.get("status", {}).get("conditions") or []
    placed = bool(thing["spec"].get("nodeName"))
    texts = [
        str(one.get("message", "")) for one in held if one["type"] == "PodScheduled" and one.get("status") == "False"
    ]
    texts += [e["message"] for e in warnings if not (placed and e.get("reason") == "FailedScheduling")][-1:]
    return next((text for text in texts if remedy(text)), next(filter(None, texts), ""))


def replace_worker(thing: dict, namespace: str) -> str:
    """Return the remedy for a worker of an MPIJob that a node refused; empty for any other pod.

    mpi-operator creates a worker only where none of its name is left, and ends the job where one was evicted.
    """
    owners = {one["kind"] for one in thing["metadata"].get("ownerReferences", [])}
    if "MPIJob" not in owners or thing["status"].get("reason") == "Evicted":
        return ""
    pod = thing["metadata"]["name"]
    return f"kubectl delete pod {pod} -n {namespace}: mpi-operator makes another worker once this one is gone"


def explain(release: str, namespace: str, objects: dict[str, list[dict]], now: datetime) -> list[Finding]:
    """Turn a release's objects into findings, in the order in which things depend on each other."""
    events = objects["events"]
    told = group_events(events)
    refused = objects.get("refused", [])
    unseen = {one["kind"] for one in refused}
    findings = crds.explain(objects)
    findings += claims.explain(release, objects, events)
    findings += [explain_store(one) for one in objects.get("externalsecrets.external-secrets.io", [])]
    trains = objects.get(trainjobs.TRAINJOBS, [])
    findings += [trainjobs.runtime(one, trains) for one in objects.get(trainjobs.RUNTIMES, [])]
    jobs = objects["jobs.batch"] + objects["pytorchjobs.kubeflow.org"] + objects["mpijobs.kubeflow.org"] + trains
    workloads = None if inventory.WORKLOADS in unseen else objects.get(inventory.WORKLOADS, [])
    classes = objects.get(inventory.PRIORITY_CLASSES)
    findings += [
        explain_job(j, drop_overcome_events(j, events, objects["pods"], now), now, workloads, classes) for j in jobs
    ]
    version = next((one["version"] for one in objects.get("trainer_version", [])), "")
    findings += [found for one in trains for found in trainjobs.started_again(one, version)]
    serving = objects.get("deployments.apps", [])
    findings += [explain_deployment(one, objects["pods"], events) for one in serving]
    succeeded = {j["metadata"]["name"] for j in jobs if any(state in conditions(j) for state in SUCCEEDED)}
    alive = {j["metadata"].get("uid", "") for j in jobs}
    retries = recreated.name_retries(objects["pods"])
    nodes = {one["metadata"]["name"]: one for one in objects.get("nodes", [])}
    unread: list[str] = []

    def look(one: tuple[int, dict]) -> links.PodWords:
        number, p = one
        own = told.get(p["metadata"].get("uid", ""), [])
        said = explain_pod(p, own, namespace, now, look=number < LOOKS, nodes=nodes, refused=unread)
        return links.PodWords(p, add_dataset_remedy(said, jobs))

    with ThreadPoolExecutor(LOOKS) as pool:  # each may read a log, and a kubelet may not answer
        words = list(pool.map(look, enumerate(objects["pods"])))
    for p, said in links.name_nodes(words, namespace, release, now):
        needed = recreated.drop_overcome_remedy(said, p, succeeded)
        needed = recreated.drop_retried_remedy(needed, p, retries)
        findings += recreated.drop_orphans_remedy(needed, p, alive, unseen)
    findings += [
        Finding(name(p), "present", "whether it is enforced depends on the cluster's network plugin")
        for p in objects.get("networkpolicies", [])
    ]
    findings += [Finding(one["kind"], "not looked at", one["said"]) for one in refused]
    findings += [Finding("pods/log", "not looked at", said) for said in unread[:1]]  # each names another pod
    if not jobs and not serving and not objects["pods"]:
        findings.append(
            Finding(
                f"release/{release}",
                "not found",
                f"namespace {namespace} holds nothing that runs for it"
                + (", as far as this user may look" if refused else ""),
                f"helm list -n {namespace}; was it installed here, or did helm install refuse it?",
            )
        )
    return findings


def show(findings: list[Finding]) -> str:
    """Lay findings out for people: one line an object, cause and remedy under it."""
    width = max(len(f.object) for f in findings)
    lines = []
    for f in findings:
        lines.append(f"{f.object:<{width}}  {f.state}")
        lines += [f"    because: {f.cause}"] if f.cause else []
        lines += [f"    remedy:  {f.remedy}"] if f.remedy else []
    return printable("\n".join(lines))


def as_json(release: str, namespace: str, findings: list[Finding]) -> str:
    """Return findings as JSON: cause and remedy are empty where there is nothing to say."""
    told = [one._asdict() for one in findings]
    return json.dumps({"release": release, "namespace": namespace, "findings": told})


def parser() -> argparse.ArgumentParser:
    """Return the parser of `trainyard why`."""
    own = parsing.command(
        "why",
        "Print, for each object of a release, what it waits for or failed on, and the remedy.",
        """
        trainyard why run -n vision
        trainyard why run -n vision --json | jq -r '.findings[] | select(.remedy != "") | .object'
        """,
        {0: "nothing is wrong", 1: "something is wrong: a remedy is printed"},
        "It reads conditions, events and termination messages, so it also answers for what never started a container.",
    )
    own.add_argument("release")
    parsing.add_namespace(own)
    own.add_argument("--json", action="store_true", help="print the findings as JSON: object, state, cause, remedy")
    return own


def main(arguments: list[str] | None = None) -> int:
    """Print the findings of the release that the command line names."""
    args = parser().parse_args(arguments)

    def run() -> int:
        objects = inventory.read_all(args.release, args.namespace)
        findings = explain(args.release, args.namespace, objects, datetime.now(UTC))
        print(as_json(args.release, args.namespace, findings) if args.json else show(findings))
        return int(any(one.remedy for one in findings))

    return parsing.run_command("why", run)
