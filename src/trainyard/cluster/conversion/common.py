"""Parts that the three kinds of jobs share: their metadata, image, program, numbers of processes, and run policy."""

import re
import shlex
from typing import Any, NamedTuple

from trainyard.cluster.conversion import programs
from trainyard.cluster.conversion.ledger import Node, Note, shown, text
from trainyard.cluster.conversion.programs import Program
from trainyard.cluster.conversion.templates import LABELS, RESERVED, Pod
from trainyard.cluster.demand import at
from trainyard.cluster.parsing import WrongInputError

Values = dict[str, Any]
QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
# An image: its registry (a first part with a dot, a colon, or localhost), its name, a tag, a digest
IMAGE = re.compile(
    r"(?:(?P<host>localhost(?::\d+)?|[^/\s]+[.:][^/\s]*)/)?(?P<name>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]*))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?$"
)
REPOSITORY = re.compile(r"[a-z0-9]+([._/-][a-z0-9]+)*$")  # as the chart takes one
OWNERS = {
    "pytorchjob": ("kubeflow.org/training-operator",),
    "mpijob": ("kubeflow.org/mpi-operator",),
    "trainjob": ("trainer.kubeflow.org/trainjob-controller",),
}
USER = (
    "the pods run as user 1000, and their root file system is read-only: the program writes below its mounts, /tmp, "
    "$HOME and $TRAINYARD_RUN_DIR (another user: global.storage.uid)"
)
LEAST = "where no CPUs or no memory are named, a pod requests 1 CPU and 4 GiB per process, and memory for /dev/shm"
CLAIM = "10Gi"  # for logs and what a program writes, where the manifest has no claim that can be written


class Asked(NamedTuple):
    """Values that the command line gives in place of the manifest."""

    image: str = ""
    command: tuple[str, ...] = ()


def union(first: list[Any], second: list[Any]) -> list[Any]:
    """Return both lists without what the second repeats."""
    return first + [one for one in second if one not in first]


def add_env(training: Values, more: list[dict]) -> None:
    """Add variables that are not set yet."""
    there = {one["name"] for one in training.get("env", [])}
    if new := [one for one in more if one["name"] not in there]:
        training["env"] = training.get("env", []) + new


def lay_over(pod: Pod, over: Pod) -> None:
    """Lay what a later source says of a pod over it, in place: maps and environment are merged, others replaced."""
    for key, later in over.get("training", {}).items():
        here, value = pod["training"].get(key), later
        if key == "env" and here:
            names = {one["name"] for one in later}
            value = [one for one in here if one["name"] not in names] + later
        elif key in ("extraVolumes", "extraVolumeMounts", "extraContainers", "extraInitContainers") and here:
            value = union(here, later)
        elif isinstance(here, dict) and isinstance(later, dict) and key != "rdma":
            value = here | later
        pod["training"][key] = value
    for key in ("storage", "scheduling"):
        pod.setdefault(key, {}).update(over.get(key, {}))
    if over.get("words") or over.get("args"):
        pod["words"], pod["args"] = over.get("words") or pod["words"], over.get("args", [])
    for key in ("image", "folder", "pullPolicy", "pullSecrets", "metrics", "claims", "host"):
        if over.get(key):
            pod[key] = over[key]


def program(pod: Pod, container: Node, asked: Asked) -> Program:
    """Return what every rank runs, and name what its launcher had and the chart has not; raises WrongInputError."""
    words = [*pod["words"], *pod["args"]]
    if asked.command:
        words = [*asked.command, *(pod["args"] if not pod["words"] else [])]
    if not asked.command and not pod["words"]:
        has = f" with the arguments {shlex.join(pod['args'])}" if pod["args"] else ""
        raise WrongInputError(
            f"{text(container.path)} names no command: the program of its image starts{has}, and the manifest does not "
            "say which: say it by --command, such as --command 'python /app/train.py'"
        )
    found = programs.find(words)
    path = f"{text(container.path)} (command)"
    ledger = container.ledger
    if found.launcher:
        named = f", with what was said by {', '.join(found.replaced)}" if found.replaced else ""
        why = f"the chart's own launcher starts the ranks{named}"
        ledger.changed.append(Note(path, found.launcher, why))
    for one in found.lost:
        ledger.lost.append(Note(path, one, f"an option of {found.launcher} that the chart's launcher does not have"))
    for one in found.per_rank:
        why = (
            "every rank would run it, not every pod: put it into the image, or into global.training.extraInitContainers"
        )
        ledger.lost.append(Note(path, shown(one), why))
    folder = found.folder or pod["folder"]
    if folder:
        found = found._replace(words=["sh", "-c", 'cd "$0" && exec "$@"', folder, *found.words])
    return found


def name_differences(template: Node, first: tuple[Pod, Program], second: tuple[Pod, Program]) -> None:
    """Name what the second of two templates says otherwise."""
    pods = [pod | {"program": one.words, "words": [], "args": []} for pod, one in (first, second)]
    for key in sorted({*pods[0], *pods[1]}):
        here, there = (pod.get(key) for pod in pods)
        if here != there:
            inner = here if isinstance(here, dict) and isinstance(there, dict) else None
            for part in sorted({*here, *there}) if inner is not None else [""]:  # type: ignore[misc]
                value = there.get(part) if inner is not None else there  # type: ignore[union-attr]
                if inner is None or inner.get(part) != value:
                    why = "the Workers' differs, and the pods of the chart are all alike: theirs is carried"
                    template.ledger.lost.append(Note(f"{text(template.path)} ({part or key})", shown(value), why))


def restarts(policy: Node) -> None:
    """Say how the chart's jobs restart."""
    if policy.value == "ExitCode":
        policy.take()
    policy.change(why="exit codes of 128 and above are retried, those below end the job")


def processes(node: Node, training: Values, found: Program, given: str) -> None:
    """Set the processes of a node: one for each GPU, else as many as the launcher or the job says."""
    said = next((one for one in (found.processes, given) if one.isdecimal()), "")
    gpus = training.get("gpusPerNode", 0)
    if not gpus:
        training["processesPerNode"] = int(said or 1)
        return
    if said and int(said) != gpus:
        why = f"each of the {gpus} GPUs of a node has one process: set gpusPerNode to as many as train"
        node.ledger.lost.append(Note(text(node.path), said, why))
    elif not said and not found.launcher and not given and gpus > 1:
        why = f"the pod started one process with {gpus} GPUs, the chart starts one for each: use LOCAL_RANK"
        node.ledger.lost.append(Note(text(node.path), "", why))


def per_node(training: Values) -> int:
    """Return how many processes a node has."""
    return int(training.get("gpusPerNode") or training["processesPerNode"])


def ranks(template: Node, found: Program, all_of_them: int) -> None:
    """Name a number of ranks that is not one for every slot."""
    if found.ranks.isdecimal() and int(found.ranks) != all_of_them:
        why = f"the chart starts a rank in each of the {all_of_them} slots: set nodes or processes to fit"
        template.ledger.lost.append(Note(f"{text(template.path)} (command)", f"-np {found.ranks}", why))


def labels_of(metadata: Node) -> None:
    """Read the labels by which Trainer and the chart know their own jobs; others are left to be named."""
    metadata.take("labels", "trainer.kubeflow.org/trainjob-ancestor-step")


def values(job: Node, pod: Pod, found: Program, operator: str, asked: Asked) -> Values:
    """Return the values that all kinds of jobs have alike."""
    training: Values = {"operator": operator, "command": found.words}
    own = pod["training"]
    add_env(
        own, [{"name": key, "value": value} for key, value in found.env if key not in RESERVED and "$(" not in value]
    )
    shared: Values = {"image": {}, "storage": dict(pod["storage"]), "training": training}
    made: Values = {"global": shared, "dataset": {"enabled": False}}
    image(job, asked.image or pod["image"], made, operator, bool(asked.image))
    if pod.get("pullPolicy"):
        shared["image"]["pullPolicy"] = pod["pullPolicy"]
    if pod.get("pullSecrets"):
        shared["image"]["pullSecrets"] = pod["pullSecrets"]
    if "results" not in shared["storage"]:
        claims = pod.get("claims", [])
        shared["storage"]["results"] = {"existingClaim": claims[0]} if claims else {"size": CLAIM}
    if pod["scheduling"]:
        shared["scheduling"] = dict(pod["scheduling"])
    if pod.get("metrics"):
        shared["metrics"] = {"enabled": True, "port": pod["metrics"]}
    of_metadata(job, made)
    own.setdefault("shmSize", "64Mi")
    if "uid" not in pod["storage"] and "runAsRoot" not in own.get("unrestricted", {}):
        job.ledger.changed.append(Note("spec (securityContext)", "", USER))
    given = {name for kind in own.get("resources", {}).values() for name in kind}
    if not {"cpu", "memory"} <= given:
        job.ledger.changed.append(Note("spec (resources)", "", LEAST))
    if operator == "mpijob" and own.get("unrestricted", {}).pop("runAsRoot", False):
        why = "ssh of an MPIJob does not serve root: the pods run as global.storage.uid"
        job.ledger.lost.append(Note("spec.mpiReplicaSpecs.Worker.template (runAsUser)", "0", why))
    if not own.get("unrestricted", True):
        del own["unrestricted"]
    training |= own
    return made


def image(job: Node, whole: str, made: Values, operator: str, ours: bool) -> None:
    """Carry the image; one that is no fixed one is lost, and any that is not ours must get the package."""
    path = f"{text(job.path)}spec (image)"
    parts = IMAGE.match(whole)
    if not parts or not REPOSITORY.match(parts["name"].rpartition("/")[2]):
        why = "it is no image's name: build one that holds the program and this package, and name it by --image"
        job.ledger.lost.append(Note(path, shown(whole), why))
        return
    folder, _, name = parts["name"].rpartition("/")
    host = parts["host"] or "docker.io"
    shared = made["global"]["image"]
    shared["registry"] = f"{host}/{folder}" if folder else f"{host}/library" if host == "docker.io" else host
    made.setdefault(operator, {})["image"] = {"repository": name}
    if parts["digest"]:
        made[operator]["image"]["digest"] = parts["digest"]
    elif parts["tag"] and parts["tag"] != "latest":
        shared["tag"] = parts["tag"]
    else:
        job.ledger.lost.append(Note(path, whole, "it names another image tomorrow: name a fixed one by --image"))
    if not ours:
        why = "it must hold this package, whose launcher its pods run: build one (docs/convert.md), see --image"
        job.ledger.changed.append(Note(path, whole, why))


def of_metadata(job: Node, made: Values) -> None:
    """Carry labels, annotations and the queue of the job."""
    metadata = job.at("metadata")
    for key in ("name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp",
                "managedFields", "selfLink", "finalizers"):  # fmt: skip
        metadata.take(key)
    for key in ("apiVersion", "kind", "status"):
        job.take(key)
    shared = made["global"]
    for key, value in (metadata.at("labels").value or {}).items():
        if key in (QUEUE, PRIORITY):
            own = "queue" if key == QUEUE else "queuePriority"
            shared.setdefault("scheduling", {})[own] = metadata.take("labels", key)
        elif key in LABELS:
            metadata.lose("labels", key, why="the chart gives its objects this label with its own value")
        else:
            metadata.take("labels", key)
            shared["training"].setdefault("jobLabels", {})[key] = str(value)
    for key, value in (metadata.at("annotations").value or {}).items():
        metadata.take("annotations", key)
        if key != "kubectl.kubernetes.io/last-applied-configuration":
            shared["training"].setdefault("jobAnnotations", {})[key] = str(value)


def run_policy(policy: Node, made: Values, operator: str, nodes: int) -> None:
    """Carry how long a job may take, how often it is retried, and when it is deleted."""
    own: Values = {}
    for key in ("cleanPodPolicy", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        field = policy.at(key)
        if (
            field.value is not None
            and field.path not in policy.ledger.read
            and (operator != "trainjob" or key == "activeDeadlineSeconds")
        ):
            own[key] = policy.take(key)
    if own.get("backoffLimit", 0) > 1000:
        own["backoffLimit"] = 1000
    suspended = policy.at("suspend").value
    if suspended and at(made, "global.scheduling.queue"):
        policy.change("suspend", why="Kueue suspends and resumes the job by itself")
    elif suspended is not None:
        own |= {"suspend": True} if policy.take("suspend") else {}
    owner = policy.at("managedBy").value
    if owner in (*OWNERS[operator], "kueue.x-k8s.io/multikueue"):
        own |= {"managedBy": policy.take("managedBy")} if owner not in OWNERS[operator] else {}
        policy.take("managedBy")
    else:
        policy.lose("managedBy", why=f"a {operator} of the chart is run by {OWNERS[operator][0]}")
    gang = policy.at("schedulingPolicy")
    if gang.value:
        found: Values = {"enabled": True}
        for key, ours in (
            ("queue", "queue"),
            ("priorityClass", "priorityClass"),
            ("scheduleTimeoutSeconds", "timeoutSeconds"),
        ):
            if gang.at(key).value:
                found[ours] = gang.take(key)
        if gang.at("minAvailable").value in (nodes, nodes + 1):
            gang.take("minAvailable")
        gang.lose("minAvailable", why=f"the chart starts all {nodes} pods or none")
        gang.lose("minResources", why="the scheduler adds up what the pods request")
        made["global"].setdefault("scheduling", {})["gang"] = found
    if own:
        made.setdefault(operator, {}).setdefault("runPolicy", {}).update(own)
