"""From a PyTorchJob, an MPIJob or a TrainJob to values of the chart."""

from collections.abc import Callable
from typing import Any, NamedTuple

from trainyard.cluster.conversion import common, templates
from trainyard.cluster.conversion.common import Asked, Values, union
from trainyard.cluster.conversion.ledger import Node, Note, shown, text
from trainyard.cluster.conversion.templates import Pod
from trainyard.cluster.demand import at

RUNTIMES_OF_TRAINER = ("torch-distributed",)  # runtimes that set nothing which the chart's own does not
MPI_RUNTIMES = ("mpi-distributed", "deepspeed-distributed", "mlx-distributed")
OF_LAUNCHER = (
    "resources", "extraVolumes", "extraVolumeMounts", "envFrom", "podLabels", "podAnnotations", "extraContainers",
    "runtimeClassName", "hostAliases", "dnsConfig", "dnsPolicy", "hostUsers", "securityContext", "serviceAccount",
)  # fmt: skip
UNCOUNTED = (
    "with exit codes a PyTorchJob counts no retries: codes below 128 are final, others are retried "
    "(pytorchjob.form: elastic counts)"
)
UNFETCHED = (
    "the chart fetches no model and no dataset for a program: let the program do it, or put them on a claim before "
    "(trainyard send)"
)
MOST_SPARES = 64  # as the chart's schema has it
UNSEEN = "what this runtime sets is not known: put it into the same file, or convert the live trainjob/NAME"


class ManifestJob(NamedTuple):
    """A manifest of a job, and the runtime that it names where that is known."""

    node: Node
    runtime: Node | None


def pytorchjob(job: ManifestJob, asked: Asked) -> Values:
    """Return the values of a PyTorchJob: Master and Workers are the chart's `nodes`, without spare ones."""
    spec = job.node.at("spec")
    specs = spec.at("pytorchReplicaSpecs")
    roles = [role for role in ("Worker", "Master") if specs.at(role).value]
    pods = {role: templates.convert(specs.at(role, "template")) for role in roles}
    pod = pods[roles[0]]
    programs = {role: common.program(pods[role], specs.at(role, "template"), asked) for role in roles}
    if len(roles) > 1:
        common.name_differences(
            specs.at("Master", "template"), (pod, programs["Worker"]), (pods["Master"], programs["Master"])
        )
    nodes = 0
    for role in roles:
        nodes += int(specs.take(role, "replicas", default=1))
        common.restarts(specs.at(role, "restartPolicy"))
    values = common.values(job.node, pod, programs[roles[0]], "pytorchjob", asked)
    training = values["global"]["training"]
    nodes = elastic(spec.at("elasticPolicy"), values, nodes)
    nproc = spec.take("nprocPerNode") or spec.at("elasticPolicy").take("nProcPerNode")
    common.processes(spec.at("nprocPerNode"), training, programs[roles[0]], str(nproc or ""))
    training["nodes"] = nodes
    if not at(values, "pytorchjob.form"):
        spec.lose("runPolicy", "backoffLimit", why=UNCOUNTED)
    common.run_policy(spec.at("runPolicy"), values, "pytorchjob", nodes)
    return values


def elastic(policy: Node, values: Values, pods: int) -> int:
    """Carry the least number of nodes, the restarts in place and spare pods; return the number of nodes.

    Ranks always meet by c10d.
    """
    if not policy.value:
        return pods
    most, restarts = int(policy.at("maxReplicas").value or pods), policy.take("maxRestarts")
    spares = min(max(pods - most, 0), MOST_SPARES) if restarts else 0  # without restarts they take no place
    nodes = pods - spares
    least = min(int(policy.take("minReplicas", default=nodes)), nodes)
    own = values.setdefault("pytorchjob", {})
    own |= {"form": "elastic", "elastic": {"minNodes": least}}
    if restarts is not None:
        own["elastic"]["maxRestarts"] = min(int(restarts), 100)
    if spares:
        own["elastic"]["spares"] = spares
    if most <= nodes:
        policy.take("maxReplicas")
    else:
        policy.lose(
            "maxReplicas", why=f"a job has at most global.training.nodes ({nodes}): raise it if the cluster has them"
        )
    for key in ("rdzvBackend", "rdzvHost", "rdzvPort", "rdzvId"):
        policy.change(key, why="the pods meet at the first of them by c10d; no other store is needed")
    policy.lose(
        "metrics", why="the number of nodes does not follow load: a lost node comes back, and no more are added"
    )
    return nodes


def mpijob(job: ManifestJob, asked: Asked) -> Values:
    """Return the values of an MPIJob: Workers are the chart's `nodes`, its launcher starts mpirun."""
    spec = job.node.at("spec")
    specs = spec.at("mpiReplicaSpecs")
    worker, launcher = (templates.convert(specs.at(role, "template")) for role in ("Worker", "Launcher"))
    serves_ssh(worker, specs.at("Worker", "template"))
    found = common.program(launcher, specs.at("Launcher", "template"), asked)
    values = common.values(job.node, worker | {"folder": ""}, found, "mpijob", asked)
    if launcher["image"] != worker["image"]:
        path = text((*specs.at("Launcher", "template", "spec").path, "containers"))
        job.node.ledger.lost.append(Note(path, launcher["image"], "launcher and workers have one image, the workers'"))
    training = values["global"]["training"]
    nodes = int(specs.take("Worker", "replicas", default=1))
    training["nodes"] = nodes
    specs.take("Launcher", "replicas")
    for role in ("Worker", "Launcher"):
        common.restarts(specs.at(role, "restartPolicy"))
    slots = str(spec.take("slotsPerWorker", default=1))
    common.processes(spec.at("slotsPerWorker"), training, found, slots)
    common.ranks(specs.at("Launcher", "template"), found, nodes * common.per_node(training))
    of_launcher(specs.at("Launcher", "template"), launcher, values)
    own_way(spec)
    common.run_policy(spec.at("runPolicy"), values, "mpijob", nodes)
    common.run_policy(spec, values, "mpijob", nodes)  # where v1alpha2 and v1 have it
    return values


def serves_ssh(worker: Pod, template: Node) -> None:
    """Say that the chart's workers serve ssh by themselves; another command of theirs is lost."""
    words = " ".join([*worker["words"], *worker["args"]]).strip()
    if not words:
        return
    path = text((*template.path, "spec", "containers", 0, "command"))
    ssh = "sshd" in words or words.startswith("sleep")
    notes, why = (template.ledger.changed, "the chart's workers serve ssh, and start the ranks") if ssh else (
        template.ledger.lost, "workers serve ssh alone: put it into the image, or into the program")  # fmt: skip
    notes.append(Note(path, shown(words), why))


def own_way(spec: Node) -> None:
    """Say what the chart's MPIJob has in its own way."""
    spec.change("sshAuthMountPath", why="the chart's pods have the keys in their own home")
    spec.change("launcherCreationPolicy", why="the launcher is made once the workers serve ssh")
    if spec.at("mpiImplementation").value == "OpenMPI":
        spec.take("mpiImplementation")
    spec.lose("mpiImplementation", why="the chart starts Open MPI's mpirun: build the image with Open MPI 4")
    if spec.at("runLauncherAsWorker").value is False:
        spec.take("runLauncherAsWorker")
    spec.lose("runLauncherAsWorker", why="the launcher trains nothing: count its ranks among the workers'")


def of_launcher(template: Node, launcher: Pod, values: Values) -> None:
    """Put what is the launcher's own under mpijob.launcher, and its environment, which the ranks need, to all."""
    training, own = values["global"]["training"], values.setdefault("mpijob", {}).setdefault("launcher", {})
    theirs = launcher["training"]
    own |= {key: theirs[key] for key in OF_LAUNCHER if key in theirs}
    common.add_env(training, theirs.get("env", []))
    if "envFrom" in theirs:
        training["envFrom"] = union(training.get("envFrom", []), theirs["envFrom"])
    placement = values["global"].get("scheduling", {})
    for key, value in placement.items():
        theirs_here = launcher["scheduling"].get(key)
        if key in ("queue", "queuePriority", "gang", "topologySpreadConstraints") or theirs_here == value:
            continue
        own.setdefault("scheduling", {})[key] = theirs_here if theirs_here is not None else type(value)()
    for key, value in launcher["scheduling"].items():
        if key not in placement:
            own.setdefault("scheduling", {})[key] = value
    reasons = {
        "extraInitContainers": "the launcher waits for the workers' ssh by itself, and has no init containers",
        "gpusPerNode": "the launcher has no GPU: mpirun starts no rank there",
        "unrestricted": "the launcher needs no such right",
        "rdma": "the launcher moves no data of the training",
    }
    taken = (*OF_LAUNCHER, *reasons, "env", "gpuResource", "gpusBy")
    reasons |= {key: f"the launcher has the workers' {key}" for key in theirs if key not in taken}
    storage = values["global"]["storage"]
    for key, value in launcher["storage"].items():
        if storage.setdefault(key, value) != value:
            reasons[key], theirs[key] = f"global.storage.{key} is one for all pods", value
    if more := launcher.get("pullSecrets"):
        shared = values["global"]["image"]
        shared["pullSecrets"] = union(shared.get("pullSecrets", []), more)
    for key, why in reasons.items():
        if key in theirs:
            notes = template.ledger.changed if key == "unrestricted" else template.ledger.lost
            notes.append(Note(f"{text(template.path)}.spec ({key})", shown(theirs[key]), why))
    if not own:
        del values["mpijob"]["launcher"]


def trainjob(job: ManifestJob, asked: Asked) -> Values:
    """Return the values of a TrainJob: what its runtime sets, its overrides, and its trainer, one over the other."""
    spec = job.node.at("spec")
    name = str(spec.at("runtimeRef", "name").value or "")
    pod, policy, mpi = of_runtime(job, spec, name)
    overrides(spec, pod)
    trainer = spec.at("trainer")
    own: Pod = {"training": {}, "storage": {}, "scheduling": {}, "host": pod.get("host", False)}
    templates.resources(trainer.at("resourcesPerNode"), own)
    own["training"].setdefault("rdma", pod["training"]["rdma"]) if "rdma" in pod["training"] else None
    templates.environment(trainer, own)
    templates.container(trainer, own)
    if "resources" in own["training"] or "gpusPerNode" in own["training"]:
        for key in ("resources", "gpusPerNode", "gpuResource"):
            pod["training"].pop(key, None)
    common.lay_over(pod, own)
    found = common.program(pod, trainer, asked)
    values = common.values(job.node, pod, found, "trainjob", asked)
    training = values["global"]["training"]
    training["nodes"] = int(trainer.take("numNodes", default=policy.get("numNodes") or 1))
    given = str(trainer.take("numProcPerNode", default=policy.get("numProcPerNode") or ""))
    common.processes(trainer.at("numProcPerNode"), training, found, given)
    if mpi:
        training["config"] = {"strategy": "horovod"}  # by which the chart chooses mpirun
    spec.lose("initializer", why=UNFETCHED)
    common.run_policy(spec, values, "trainjob", training["nodes"])
    return values


def of_runtime(job: ManifestJob, spec: Node, name: str) -> tuple[Pod, dict[str, Any], bool]:
    """Return what a TrainJob's runtime sets: its pod, its numbers, and whether mpirun starts its ranks."""
    nothing: Pod = {"training": {}, "storage": {}, "scheduling": {}, "image": "", "words": [], "args": [], "folder": ""}
    if job.runtime is None:
        known = name in RUNTIMES_OF_TRAINER
        say: Callable[..., None] = spec.change if known else spec.lose
        say("runtimeRef", why="the chart makes a TrainingRuntime of its own" if known else UNSEEN)
        return nothing, {}, name in MPI_RUNTIMES
    spec.change("runtimeRef", why="the chart makes a TrainingRuntime of its own, with what this one sets")
    runtime = job.runtime.at("spec")
    for key in ("apiVersion", "kind", "metadata", "status"):
        job.runtime.take(key)
    ml = runtime.at("mlPolicy")
    numbers = {"numNodes": ml.take("numNodes")}
    kind = next((one for one in ("mpi", "torch") if ml.at(one).value is not None), "torch")
    numbers["numProcPerNode"] = ml.take(kind, "numProcPerNode")
    if kind == "torch" and ml.at("torch").value == {}:
        ml.take("torch")
    for key in ("mpiImplementation", "sshAuthMountPath", "runLauncherAsNode"):
        ml.change("mpi", key, why="the chart's own runtime sets it")
    pod = nothing
    for one in runtime.at("template", "spec", "replicatedJobs").children():
        one.take("replicas")
        one.take("groupName")
        if one.value.get("name") == "node":
            one.take("name")
            common.labels_of(one.at("template", "metadata"))
            pod = templates.convert(one.at("template", "spec", "template"))
            one.change("dependsOn", why="a node depends on no other job of the chart")
            for key in ("backoffLimit", "parallelism", "completions"):
                one.take("template", "spec", key)
        else:
            one.lose(why="the chart's job has nodes alone, and mpirun's launcher: let the program do it")
    return pod, numbers, kind == "mpi"


def overrides(spec: Node, pod: Pod) -> None:
    """Lay what podTemplateOverrides and runtimePatches say of the nodes over the pod."""
    for one in spec.at("podTemplateOverrides").children():
        if "node" in [job.get("name") for job in one.value.get("targetJobs", [])]:
            one.take("targetJobs")
            common.lay_over(pod, templates.convert(one))
    for patch in spec.at("runtimePatches").children():
        patch.take("manager")
        patch.take("time")
        template = patch.at("trainingRuntimeSpec", "template")
        if template.at("metadata").value:
            whole: Pod = {"training": {}}
            templates.metadata(template.at("metadata"), whole)
            common.lay_over(pod, whole)
        for one in template.at("spec", "replicatedJobs").children():
            if one.value.get("name") == "node":
                one.take("name")
                common.lay_over(pod, templates.convert(one.at("template", "spec", "template")))


CONVERT: dict[str, Callable[[ManifestJob, Asked], Values]] = {
    "PyTorchJob": pytorchjob,
    "MPIJob": mpijob,
    "TrainJob": trainjob,
}
