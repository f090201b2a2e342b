"""Kueue: whether the run's queue takes it, ever: queues, flavors, quota, priorities."""

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal

import yaml

from trainyard.cluster.checks import kueue_flavors, operator_pods, operators, placement
from trainyard.cluster.checks.diagnosis import (
    ERROR,
    WARNING,
    Check,
    Diagnosis,
    amount,
    check,
    find_by_name,
    several,
    show,
)
from trainyard.cluster.demand import JOBS, Demand, at
from trainyard.cluster.findings import in_namespace
from trainyard.cluster.queues import PRIORITY, QUEUE
from trainyard.cluster.survey import ClusterSurvey

KINDS = {"PyTorchJob": "kubeflow.org/pytorchjob", "MPIJob": "kubeflow.org/mpijob", "Job": "batch/job",
         "TrainJob": "trainer.kubeflow.org/trainjob"}  # fmt: skip


def check_queue_state(thing: dict) -> Iterator[Diagnosis]:
    """Name a queue that lets nothing in: stopped, or inactive for a reason of its own."""
    label = f"{thing['kind'].lower()}/{thing['metadata']['name']}"
    where = in_namespace(thing)
    policy = thing["spec"].get("stopPolicy", "None")
    if policy != "None":
        patch = """--type merge -p '{"spec":{"stopPolicy":"None"}}'"""
        yield Diagnosis(ERROR, label, f"it is stopped (stopPolicy: {policy})", f"kubectl patch{where} {label} {patch}")
        return
    for one in thing.get("status", {}).get("conditions") or []:
        if one["type"] == "Active" and one["status"] == "False":
            seen = f"it is not active: {one.get('message') or one.get('reason', '')}"
            yield Diagnosis(ERROR, label, seen, f"correct what it names: kubectl describe{where} {label}")


def sum_quota(thing: dict, *further: str) -> dict[str, Decimal]:
    """Return the quota of a ClusterQueue or Cohort by resource, in all flavors; `further`: limits that add to it."""
    total: dict[str, Decimal] = defaultdict(Decimal)
    for group in (thing.get("spec") or {}).get("resourceGroups") or []:
        for flavor in group["flavors"]:
            for one in flavor["resources"]:
                total[one["name"]] += sum(amount(one.get(key, 0)) for key in ("nominalQuota", *further))
    return total


def sum_requests(demand: Demand, queue: str, passed: tuple[str, ...]) -> list[tuple[str, dict[str, Decimal]]]:
    """Return what each job of a queue asks in all, by resource; without resources whose names begin as `passed` say."""
    found: dict[tuple[str, str], dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for group in demand.groups:
        if queue_of(group.owner) != queue:
            continue
        for name, number in placement.requests(group.spec).items():
            if not name.startswith(passed):
                found[group.owner["kind"], group.owner["metadata"]["name"]][name] += number * group.pods
    return [(kind, dict(one)) for (kind, _), one in found.items()]


def queue_of(thing: dict) -> str:
    """Return the queue of a job; empty for none."""
    found: str = (thing["metadata"].get("labels") or {}).get(QUEUE, "")
    return found


def check_quota(cluster: dict, asked: list[tuple[str, dict[str, Decimal]]]) -> Iterator[Diagnosis]:
    """Name resources that a ClusterQueue does not cover, or of which it has too little for a job, even alone."""
    label, may = f"clusterqueue/{cluster['metadata']['name']}", sum_quota(cluster, "borrowingLimit")
    borrows = bool(cluster["spec"].get("cohort") or cluster["spec"].get("cohortName"))
    limited = all("borrowingLimit" in one for group in cluster["spec"].get("resourceGroups") or []
                  for flavor in group["flavors"] for one in flavor["resources"])  # fmt: skip
    if not may:
        yield Diagnosis(ERROR, label, "it has no quota at all", "add resourceGroups to it (examples/kueue/queues.yaml)")
        return
    for kind, resources in asked:
        for name, number in sorted(resources.items()):
            if name not in may:
                seen = f"it does not cover {name}, which the {kind} requests"
                yield Diagnosis(ERROR, label, seen, f"add {name} to its coveredResources with a quota, or request none")
            elif number > may[name] and (limited or not borrows):
                seen = f"its quota is {show(may[name], name)} {name}, and the {kind} requests {show(number, name)}"
                answer = f"raise nominalQuota of {name} to {show(number, name)}, or lower global.training.nodes"
                yield Diagnosis(ERROR, label, seen, answer)


def cohort_of(thing: dict) -> str:
    """Return the cohort of a ClusterQueue, or the parent of a Cohort; empty for none."""
    spec = thing.get("spec") or {}
    return str(next((spec[key] for key in ("cohortName", "cohort", "parentName", "parent") if spec.get(key)), ""))


def check_cohort(
    cluster: dict, survey: ClusterSurvey, wanted: list[tuple[str, dict[str, Decimal]]]
) -> Iterator[Diagnosis]:
    """Name resources of which the queues that lend to each other have too little for a job, all in all."""
    parents = {one["metadata"]["name"]: cohort_of(one) for one in survey.of("cohorts")}

    def root(name: str) -> str:
        seen = set()
        while parents.get(name) and name not in seen:
            seen.add(name)
            name = parents[name]
        return name

    own = root(cohort_of(cluster))
    if not own or "cohorts" in survey.unseen:
        return
    members = [one for one in survey.of("clusterqueues") if cohort_of(one) and root(cohort_of(one)) == own]
    members += [one for one in survey.of("cohorts") if root(one["metadata"]["name"]) == own]
    total: dict[str, Decimal] = defaultdict(Decimal)
    for one in members:
        for name, number in sum_quota(one).items():
            total[name] += number
    for kind, resources in wanted:
        for name, number in sorted(resources.items()):
            if number > total[name]:
                seen = f"its queues have {show(total[name], name)} {name} in all, and the {kind} requests "
                seen += show(number, name)
                answer = f"raise nominalQuota of {name} in one of them, or lower global.training.nodes"
                yield Diagnosis(ERROR, f"cohort/{own}", seen, answer)


def check_namespace(cluster: dict, survey: ClusterSurvey) -> Iterator[Diagnosis]:
    """Name a ClusterQueue that does not take the run's namespace."""
    if not placement.selects(cluster["spec"].get("namespaceSelector"), survey.labels()):
        seen = f"its namespaceSelector does not take namespace {survey.namespace}"
        answer = "name another LocalQueue under global.scheduling.queue, or set its namespaceSelector: {}"
        yield Diagnosis(ERROR, f"clusterqueue/{cluster['metadata']['name']}", seen, answer)


def check_controller(survey: ClusterSurvey, needed: bool) -> Iterator[Diagnosis]:
    """Name a Kueue that is not running."""
    things = operators.find_deployments(operators.KUEUE, survey.of("deployments"))
    if "deployments" not in survey.unseen and (things or needed):
        for one in operators.check_controller(operators.KUEUE, things, survey.of("pods"), needed):
            stops = "with Kueue's webhooks in place its jobs cannot even be created"
            yield (
                one._replace(seen=one.seen.replace("its jobs would be ignored", stops))
                if things
                else one._replace(
                    seen="global.scheduling.queue is set, and Kueue is not installed: the job would never be admitted",
                    remedy=f"leave global.scheduling.queue empty, or {one.remedy}",
                )
            )
    for thing in things:
        yield from filter(None, [operators.check_release(operators.KUEUE, thing)])
        yield from operator_pods.check_restarts("Kueue", thing, survey.of("pods"), survey.now)


def read_configuration(survey: ClusterSurvey) -> dict:
    """Return Kueue's own configuration; empty where it is unknown."""
    text = at(next(iter(survey.of("kueue-configuration")), {}), "data", {}).get("controller_manager_config.yaml", "")
    with contextlib.suppress(yaml.YAMLError):
        found = yaml.safe_load(text)
        return found if isinstance(found, dict) else {}
    return {}


def check_unqueued_jobs(survey: ClusterSurvey) -> Iterator[Diagnosis]:
    """Name a Kueue that holds jobs without a queue, too."""
    configuration = read_configuration(survey)
    if (
        configuration.get("manageJobsWithoutQueueName") is True
        and placement.selects(configuration.get("managedJobsNamespaceSelector") or {}, survey.labels())
        and find_by_name(survey.of("localqueues"), "default") is None
    ):
        others = [one["metadata"]["name"] for one in survey.of("localqueues")]
        seen = (
            "it holds jobs without a queue, too (manageJobsWithoutQueueName), and the run names none: it never starts"
        )
        yield Diagnosis(
            ERROR,
            "kueue",
            seen,
            f"set global.scheduling.queue: {others[0] if others else 'a LocalQueue of the namespace'}",
        )


def check_managed_kinds(survey: ClusterSurvey, demand: Demand) -> Iterator[Diagnosis]:
    """Name kinds of jobs with a queue that Kueue does not look at: they would start at once, past the queue."""
    known = at(read_configuration(survey), "integrations.frameworks", [])
    for thing in demand.objects:
        if known and thing["kind"] in KINDS and queue_of(thing) and KINDS[thing["kind"]] not in known:
            seen = f"its configuration does not name {KINDS[thing['kind']]}: the {thing['kind']} would pass the queue"
            answer = f"add {KINDS[thing['kind']]} to integrations.frameworks of kueue-manager-config, and restart Kueue"
            yield Diagnosis(ERROR, "kueue", seen, answer)


def check_priorities(demand: Demand, known: list[dict]) -> Iterator[Diagnosis]:
    """Name WorkloadPriorityClasses that do not exist."""
    for thing in demand.objects:
        wanted = (thing["metadata"].get("labels") or {}).get(PRIORITY)
        if wanted and find_by_name(known, wanted) is None and wanted not in demand.makes("WorkloadPriorityClass"):
            seen = f"the {thing['kind']} names this WorkloadPriorityClass, which does not exist"
            answer = "correct global.scheduling.queuePriority (kubectl get workloadpriorityclass)"
            yield Diagnosis(ERROR, f"workloadpriorityclass/{wanted}", seen, answer)


def check_queue(name: str, survey: ClusterSurvey, demand: Demand) -> Iterator[Diagnosis]:
    """Name what keeps the run's queue from ever admitting it."""
    local = find_by_name(survey.of("localqueues"), name)
    if local is None and name in demand.makes("LocalQueue"):
        return
    if local is None:
        others = [one["metadata"]["name"] for one in survey.of("localqueues")]
        instead = f"set global.scheduling.queue: {others[0]}" if others else "create it (examples/kueue/queues.yaml)"
        seen = f"there is no LocalQueue of this name in namespace {survey.namespace}"
        yield Diagnosis(ERROR, f"localqueue/{name}", seen, instead)
        return
    target = local["spec"].get("clusterQueue", "")
    cluster = find_by_name(survey.of("clusterqueues"), target)
    if cluster is None:
        if "clusterqueues" not in survey.unseen:
            seen = f"it leads to the ClusterQueue {target}, which does not exist"
            yield Diagnosis(
                ERROR, f"localqueue/{name}", seen, f"create ClusterQueue {target} (examples/kueue/queues.yaml)"
            )
        return
    yield from check_namespace(cluster, survey)
    passed = at(read_configuration(survey), "resources.excludeResourcePrefixes", [])
    asked = sum_requests(demand, name, tuple(passed))
    found = list(check_quota(cluster, asked))
    if not found and "clusterqueues" not in survey.unseen:
        found += check_cohort(cluster, survey, asked)
    if "resourceflavors" not in survey.unseen:
        found += kueue_flavors.examine(cluster, survey, [one for one in demand.groups if queue_of(one.owner) == name])
    yield from found
    reasons = [*check_queue_state(cluster), *check_queue_state(local)]
    yield from reasons[:1] if not found else [one for one in reasons if "is stopped" in one.seen]


def check_all_queues(survey: ClusterSurvey) -> Iterator[Diagnosis]:
    """Name queues of the namespace that let nothing in, where the run has no queue."""
    for local in survey.of("localqueues"):
        cluster = find_by_name(survey.of("clusterqueues"), local["spec"].get("clusterQueue", ""))
        if cluster is None and "clusterqueues" not in survey.unseen:
            seen = f"it leads to the ClusterQueue {local['spec'].get('clusterQueue')}, which does not exist"
            answer = "create that ClusterQueue (examples/kueue/queues.yaml)"
            yield Diagnosis(WARNING, f"localqueue/{local['metadata']['name']}", seen, answer)
        for thing in filter(None, (cluster, local)):
            yield from (one._replace(level=WARNING) for one in check_queue_state(thing))


def examine(survey: ClusterSurvey, demand: Demand) -> Check:
    """Check the queue that the run names, and the priorities; without one, the queues of the namespace."""
    names = dict.fromkeys(
        filter(None, (queue_of(thing) for thing in demand.objects if thing["kind"] in (*JOBS, "Job")))
    )
    needed = bool(names)
    wrong = list(check_controller(survey, needed))
    unseen = [kind for kind in ("localqueues", "clusterqueues", "resourceflavors") if kind in survey.unseen]
    unproven = [f"queues: {kind}: {survey.unseen[kind]}" for kind in unseen if needed or survey.of("localqueues")]
    installed = bool(operators.find_deployments(operators.KUEUE, survey.of("deployments")))
    if needed and not installed and not survey.of("localqueues") and "deployments" not in survey.unseen:
        return check("queues", wrong=wrong, unproven=unproven)
    if "localqueues" not in survey.unseen:
        for name in names:
            wrong += check_queue(name, survey, demand)
    wrong += check_managed_kinds(survey, demand)
    if needed and "workloadpriorityclasses" not in survey.unseen:
        wrong += check_priorities(demand, survey.of("workloadpriorityclasses"))
    if not needed:
        wrong += [*check_all_queues(survey), *check_unqueued_jobs(survey)]
    local = [one["metadata"]["name"] for one in survey.of("localqueues")]
    if needed:
        sound = [f"the run is for the queue {several(names)}"] if not wrong else []
    else:
        sound = [
            f"Kueue, queues of the namespace: {several(local) or 'none'}" if installed else "no Kueue, and none needed"
        ]
    return check("queues", sound, wrong, unproven)
