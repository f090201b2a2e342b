"""The operators: their CRDs, their controllers and versions, and whether they serve the run's namespace."""

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from trainyard.cluster import crds, trainjobs, versions
from trainyard.cluster.checks import operator_pods
from trainyard.cluster.checks.diagnosis import ERROR, NOTE, WARNING, Check, Diagnosis, check, several
from trainyard.cluster.demand import Demand, at
from trainyard.cluster.findings import conditions
from trainyard.cluster.queues import QUEUE
from trainyard.cluster.remedies import remedy
from trainyard.cluster.survey import DEFINITIONS, ClusterSurvey

RESUME = "update jobs/status.batch"  # what mpi-operator resets to resume a suspended MPIJob
APPLY = "kubectl apply --server-side"


class Operator(NamedTuple):
    """One controller that a kind of job needs."""

    name: str
    program: str  # what its deployment, image or command is called
    kinds: tuple[str, ...]  # its CRDs
    tested: str
    install: str
    others: tuple[str, ...] = ()  # minor versions that a release is run with, too
    steady: bool = True  # whether a newer minor version is expected to take what the tested one takes


PYTORCH = Operator(
    "training-operator", r"training-operator", ("pytorchjobs.kubeflow.org",), "1.9.4",
    f'{APPLY} -k "github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.4"',
)  # fmt: skip
MPI = Operator(
    "mpi-operator", r"mpi-operator", ("mpijobs.kubeflow.org",), "0.8.2",
    f"{APPLY} -f https://raw.githubusercontent.com/kubeflow/mpi-operator/v0.8.2/deploy/v2beta1/mpi-operator.yaml",
    ("0.7",),
)  # fmt: skip
TRAINER = Operator(
    "Kubeflow Trainer", r"trainer-controller-manager", (trainjobs.TRAINJOBS, trainjobs.RUNTIMES), versions.TRAINER,
    f'{APPLY} -k "https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v{versions.TRAINER}"',
    versions.EARLIER, steady=False,
)  # fmt: skip
JOBSET = Operator(
    "JobSet", r"jobset-controller", (trainjobs.JOBSETS,), versions.JOBSET,
    f"{APPLY} -f https://github.com/kubernetes-sigs/jobset/releases/download/v{versions.JOBSET}/manifests.yaml",
    ("0.10", "0.11"),
)  # fmt: skip
KUEUE = Operator(
    "Kueue", r"kueue-controller", (), "0.18.4",
    f"{APPLY} -f https://github.com/kubernetes-sigs/kueue/releases/download/v0.18.4/manifests.yaml",
    ("0.19",),
)  # fmt: skip
FOR = {"PyTorchJob": (PYTORCH,), "MPIJob": (MPI,), "TrainJob": (TRAINER, JOBSET)}
ALL = (PYTORCH, MPI, TRAINER, JOBSET)
OPERATOR_OF = {"pytorchjob": PYTORCH, "mpijob": MPI, "trainjob": TRAINER}


def main(thing: dict) -> dict:
    """Return the container of a deployment that is the program itself."""
    found: dict = at(thing, "spec.template.spec.containers", [{}])[0]
    return found


def words(thing: dict) -> list[str]:
    """Return the command and arguments of a deployment's container."""
    container = main(thing)
    return [*(container.get("command") or []), *(container.get("args") or [])]


def find_deployments(operator: Operator, deployments: list[dict]) -> list[dict]:
    """Return the deployments that are an operator, whatever they are called."""
    found = []
    for thing in deployments:
        image = main(thing).get("image", "").rpartition("/")[2]
        called = (thing["metadata"]["name"], image, *words(thing)[:1])
        if any(re.search(operator.program, text) for text in called):
            found.append(thing)
    return found


def number(thing: dict) -> str:
    """Return the version of a deployment's image, such as 1.9.4; empty where its tag is none."""
    tag = main(thing).get("image", "").partition("@")[0].rpartition(":")[2]
    found = re.match(r"v?(\d+\.\d+(\.\d+)?)", tag)
    if found is None:
        found = re.match(
            r"v?(\d+\.\d+(\.\d+)?)$", at(thing, "metadata.labels", {}).get("app.kubernetes.io/version", "")
        )
    return found[1] if found else ""


def check_definitions(
    operator: Operator, found: dict[str, dict], needed: bool, there: bool, *, written: tuple[int, ...], instead: str
) -> Iterator[Diagnosis]:
    """Name what is wrong with an operator's CRDs; `there` says that its controller is.

    `written` is the version of Trainer that values name, `instead` what to set for an operator that is there.
    """
    level = ERROR if needed else WARNING
    for kind in operator.kinds:
        crd = found.get(kind)
        if crd is None:
            if needed or there or any(other in found for other in operator.kinds):
                seen = f"this cluster does not know {kind}"
                answer = f"{instead if needed else ''}install {operator.name} {operator.tested}: {operator.install}"
                yield Diagnosis(level, f"crd/{kind}", seen, answer)
            continue
        held = conditions(crd)
        if crd["metadata"].get("deletionTimestamp"):
            seen = "it is being deleted, with all objects of its kind"
            answer = f"see its finalizers, then install it anew: {operator.install}"
            yield Diagnosis(level, f"crd/{kind}", seen, answer)
        elif "status" in crd and "Established" not in held:
            false = [one for one in crd["status"].get("conditions") or [] if one.get("status") == "False"]
            failed: dict = false[0] if false else {}
            seen = f"it is not established: {failed.get('message', 'the API server does not serve it yet')}"
            yield Diagnosis(level, f"crd/{kind}", seen, f"kubectl describe crd {kind}")
        if misfit := crds.fit(crd, written):
            answer = f"{misfit.remedy}: {operator.install}"
            yield Diagnosis(level, f"crd/{kind}", f"{misfit.state}: {misfit.cause}", answer)


def serving(survey: ClusterSurvey, found: Collection[str]) -> dict[str, dict]:
    """Return a ready deployment of each operator whose CRDs are there, by its name in `global.training.operator`."""
    ready = {
        name: [one for one in find_deployments(operator, survey.of("deployments")) if at(one, "status.readyReplicas")]
        for name, operator in OPERATOR_OF.items()
        if set(operator.kinds) <= set(found)
    }
    return {name: things[0] for name, things in ready.items() if things}


def say_instead(kind: str, survey: ClusterSurvey, found: Collection[str]) -> str:
    """Say which operators could run a job of this kind instead, since they are there; empty if none is."""
    others = [name for name in serving(survey, found) if name != kind.lower()]
    if not others:
        return ""
    horovod = "; to keep Horovod there, strategy: horovod" if kind == "MPIJob" and "trainjob" in others else ""
    return f"set global.training.operator: {' or '.join(others)}, which is here (docs/operators.md{horovod}), or "


def check_controller(operator: Operator, things: list[dict], pods: list[dict], needed: bool) -> Iterator[Diagnosis]:
    """Name an operator whose pods do not run, with the cause that its pods tell."""
    level = ERROR if needed else WARNING
    if not things:
        seen = f"its CRD is here, and no deployment runs {operator.name}: its jobs would be ignored"
        yield Diagnosis(level, operator.name, seen, f"install {operator.name} {operator.tested}: {operator.install}")
    for thing in things:
        meta, status = thing["metadata"], thing.get("status", {})
        label, home = f"deployment/{meta['name']}", f"kubectl -n {meta['namespace']}"
        if thing["spec"].get("replicas", 1) == 0:
            seen = f"{operator.name} is scaled to 0: its jobs would be ignored"
            yield Diagnosis(level, label, seen, f"{home} scale {label} --replicas=1")
        elif not status.get("readyReplicas"):
            cause, answer = waiting(thing, pods)
            if operator is PYTORCH and "enable-scheme" not in " ".join(words(thing)) and not answer:
                answer = (
                    f"{home} logs {label}; beside mpi-operator it needs --enable-scheme=pytorchjob (docs/operators.md)"
                )
            seen = f"{operator.name} has no pod that is ready{cause}"
            yield Diagnosis(level, label, seen, answer or f"{home} describe {label}; {home} logs {label}")


def waiting(thing: dict, pods: list[dict]) -> tuple[str, str]:
    """Return what the pods of a deployment wait for or failed on, and the remedy if one is known."""
    for pod in operator_pods.pods_of(thing, pods):
        for one in pod.get("status", {}).get("containerStatuses") or []:
            over = one.get("lastState", {}).get("terminated", {})
            said = one["state"].get("waiting") or one["state"].get("terminated") or {}
            text = ": ".join(filter(None, (said.get("reason"), over.get("message") or said.get("message"))))
            if text:
                known = remedy(text) if "Pull" in text else ""
                return f" ({' '.join(text.split())})", known and "correct its image, or let nodes reach its registry"
        for one in pod.get("status", {}).get("conditions") or []:
            if one["type"] == "PodScheduled" and one["status"] == "False":
                return f" ({one.get('message', 'it finds no node')})", ""
    failing = conditions(thing).get("ReplicaFailure", {})
    return (f" ({failing['message']})", "") if failing.get("message") else ("", "")


def check_arguments(operator: Operator, thing: dict, namespace: str, needed: bool) -> Iterator[Diagnosis]:
    """Name arguments by which an operator does not look at the run's jobs."""
    level, label = ERROR if needed else WARNING, f"deployment/{thing['metadata']['name']}"
    line = " ".join(words(thing))
    home = f"kubectl -n {thing['metadata']['namespace']} edit {label}"
    only = re.search(r"--(?:lock-)?namespace[= ](\S+)", line) if "--namespace" in line else None
    if only and only[1] not in (namespace, '""', "''"):
        seen = f"{operator.name} looks at namespace {only[1]} alone, and the run is for {namespace}"
        yield Diagnosis(level, label, seen, f"take its argument --namespace out ({home}), or install into {only[1]}")
    schemes = re.findall(r"--enable-scheme[= ](\S+)", line)
    if operator is PYTORCH and schemes and not any("pytorch" in one.lower() for one in schemes):
        seen = f"it is started with --enable-scheme={','.join(schemes)}, and ignores PyTorchJobs"
        yield Diagnosis(level, label, seen, f"add --enable-scheme=pytorchjob to its arguments: {home}")


def check_release(operator: Operator, thing: dict) -> Diagnosis | None:
    """Say that an operator is of a minor version that was not tested, and which of those that were is the nearest."""
    have, tested = number(thing), (operator.tested, *operator.others)
    minor = versions.minor(have)
    if not have or minor in map(versions.minor, tested):
        return None
    label = f"deployment/{thing['metadata']['name']}"
    below = [one for one in tested if versions.minor(one) < minor]
    if not below:
        nearest = min(tested, key=versions.minor)
        seen = f"{operator.name} is {have}, older than the {nearest} that was tested"
        return Diagnosis(NOTE, label, seen, f"update it: {operator.install}")
    nearest = max(below, key=versions.minor)
    seen = f"{operator.name} is {have}, and was not tested; the nearest version that was is {nearest}"
    doubt = "" if operator.steady else ", and each minor version of it has changed its API"
    # no command that would put an older version in its place, under the jobs of others
    answer = (
        "try a short run first: trainyard up with --set global.training.config.max_steps=10 (docs/compatibility.md)"
    )
    return Diagnosis(NOTE if operator.steady else WARNING, label, seen + doubt, answer)


def check_init_container(things: list[dict], demand: Demand, level: str) -> Iterator[Diagnosis]:
    """Name workers of a PyTorchJob that this Pod Security level refuses, by the operator's own init container."""
    workers = [group for group in demand.groups if group.name == "pytorchjob worker"]
    masters = [group for group in demand.groups if group.name == "pytorchjob master"]
    if level != "restricted" or not workers or not masters:
        return
    for thing in things:
        if "--pytorch-init-container-template-file" not in " ".join(words(thing)):
            seen = "its init container has no securityContext, and the namespace enforces restricted: no worker starts"
            yield Diagnosis(ERROR, f"deployment/{thing['metadata']['name']}", seen,
                            "set pytorchjob.form: elastic, or start the operator with "
                            "--pytorch-init-container-template-file (docs/operators.md)")  # fmt: skip


def check_gang(things: list[dict], demand: Demand) -> Iterator[Diagnosis]:
    """Name a run that is to start whole or not at all, with an operator that has no gang scheduler."""
    asked = at(demand.values, "global.scheduling.gang.enabled", False)
    for thing in things if asked else []:
        if "gang-scheduler-name" not in " ".join(words(thing)) and "gang-scheduling" not in " ".join(words(thing)):
            seen = "global.scheduling.gang.enabled is set, and the operator has no gang scheduler"
            answer = "start it with --gang-scheduler-name (Volcano, coscheduling), or leave global.scheduling.gang off"
            yield Diagnosis(ERROR, f"deployment/{thing['metadata']['name']}", seen, answer)


def check_rights(operator: Operator, thing: dict, survey: ClusterSurvey, needed: bool) -> Iterator[Diagnosis]:
    """Name what an operator's account may not do in the namespace."""
    lacks = sorted(right for program, right in survey.denied if program == operator.program and right != RESUME)
    if lacks:
        seen = f"its account may not {several(lacks)} in namespace {survey.namespace}"
        answer = f"give it its own role back: {operator.install}"
        level = ERROR if needed else WARNING
        yield Diagnosis(level, f"deployment/{thing['metadata']['name']}", seen, answer)


def check_resuming(demand: Demand, things: list[dict], denied: frozenset[tuple[str, str]]) -> Iterator[Diagnosis]:
    """Name an mpi-operator that may not resume a job which Kueue has preempted."""
    queued = any(
        thing["kind"] == "MPIJob" and QUEUE in (thing["metadata"].get("labels") or {}) for thing in demand.objects
    )
    if queued and things and (MPI.program, RESUME) in denied:
        seen = "its role does not let it resume an MPIJob that Kueue has preempted"
        answer = "kubectl apply -f examples/kueue/mpi-operator.yaml (docs/kueue.md)"
        yield Diagnosis(WARNING, f"deployment/{things[0]['metadata']['name']}", seen, answer)


def check_operator(
    operator: Operator, survey: ClusterSurvey, demand: Demand, found: dict[str, dict]
) -> tuple[list[Diagnosis], str]:
    """Check one operator: return what is wrong with it, and its name, version and namespace where nothing is."""
    things, need = (
        find_deployments(operator, survey.of("deployments")),
        {one for job in demand.jobs for one in FOR[job["kind"]]},
    )
    known = any(kind in found for kind in operator.kinds) or (DEFINITIONS in survey.unseen and bool(things))
    needed = operator in need or (demand.assumed and bool(things) and known)
    written = versions.minor(str(at(demand.values, "trainjob.version", "") or ""))
    asked = [job["kind"] for job in demand.jobs if operator in FOR[job["kind"]]]
    how: dict = {"written": written, "instead": say_instead(asked[0], survey, found) if asked else ""}
    wrong = (
        [] if DEFINITIONS in survey.unseen else list(check_definitions(operator, found, needed, bool(things), **how))
    )
    if (known or things) and "deployments" not in survey.unseen:
        wrong += check_controller(operator, things, survey.of("pods"), needed)
    wrong += operator_pods.check_duplicates(
        operator.name, things, {operator_pods.name_of(thing): " ".join(words(thing)) for thing in things}
    )
    for thing in things:
        wrong += operator_pods.check_restarts(operator.name, thing, survey.of("pods"), survey.now)
        wrong += [
            *check_arguments(operator, thing, survey.namespace, needed),
            *check_rights(operator, thing, survey, needed),
        ]
        wrong += filter(None, [check_release(operator, thing)])
    if operator is TRAINER and known and things:
        wrong += check_trainer(survey, written, ERROR if operator in need else WARNING)
    if operator in (PYTORCH, MPI) and operator in need:
        wrong += check_gang(things, demand)
    if operator is MPI:
        wrong += check_resuming(demand, things, survey.denied)
    if operator is PYTORCH:
        wrong += check_init_container(things, demand, survey.enforced_level())
    if wrong or not things or not known:
        return wrong, ""
    return [], f"{operator.name} {number(things[0])}".strip() + f" ({things[0]['metadata']['namespace']})"


def examine(survey: ClusterSurvey, demand: Demand) -> Check:
    """Check the operators that the run needs, and those that are installed."""
    found = {crd["metadata"]["name"]: crd for crd in survey.of(DEFINITIONS)}
    each = [check_operator(operator, survey, demand, found) for operator in ALL]
    wrong, sound = [bad for many, _ in each for bad in many], [text for _, text in each if text]
    unseen = {"the operators' CRDs": DEFINITIONS, "whether the operators run": "deployments"}
    unproven = [f"{what}: {survey.unseen[kind]}" for what, kind in unseen.items() if kind in survey.unseen]
    if not sound and not wrong and not unproven:
        wrong.append(say_none({job["kind"] for job in demand.jobs}))
    return check("operators", sound, wrong, unproven)


def say_none(kinds: set[str]) -> Diagnosis:
    """Say that no operator is there at all."""
    operator = FOR[sorted(kinds)[0]][0] if kinds else PYTORCH
    seen = "none is installed that runs a PyTorchJob, an MPIJob or a TrainJob"
    return Diagnosis(ERROR, "operators", seen, f"install {operator.name} {operator.tested}: {operator.install}")


def announced_version(survey: ClusterSurvey) -> str:
    """Return the version of Kubeflow Trainer that the cluster tells; empty where it tells none."""
    public = next(iter(survey.of("trainer-version")), None)
    return str(at(public or {}, "data.kubeflow_trainer_version", ""))


def version_to_set(survey: ClusterSurvey) -> str:
    """Return what `trainjob.version` must say for the cluster's Kubeflow Trainer; empty where it need say nothing."""
    there = ".".join(map(str, versions.minor(announced_version(survey))))
    return there if there in versions.EARLIER else ""


def check_trainer(survey: ClusterSurvey, written: tuple[int, ...], level: str) -> Iterator[Diagnosis]:
    """Say that Kubeflow Trainer is another than the run is written for (`trainjob.version`), or too old."""
    have = announced_version(survey)
    if not have or not (said := versions.skew(have, written=written)):
        return
    answer = "set trainjob.version to the cluster's"
    if not written:
        version = version_to_set(survey)
        own = f'set trainjob.version: "{version}", or ' if version else ""
        answer = f"{own}update Kubeflow Trainer to {versions.TRAINER}: {TRAINER.install}"
    yield Diagnosis(level, "kubeflow-trainer", said, answer)
