"""The namespace: whether it is there, what it allows, and what pods need in it: accounts, secrets, priorities."""

from collections.abc import Iterator

from trainyard.cluster.checks import quotas, references
from trainyard.cluster.checks.diagnosis import ERROR, WARNING, Check, Diagnosis, check, several
from trainyard.cluster.checks.operators import words
from trainyard.cluster.demand import Demand, at, list_keys, list_required
from trainyard.cluster.survey import ENFORCE, NAMES, ClusterSurvey

BUILT_IN = ("system-cluster-critical", "system-node-critical")
# https://kubernetes.io/docs/concepts/security/pod-security-standards
BASELINE = {"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
            "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}  # fmt: skip
READ = ("namespace", "resourcequotas", "limitranges", "serviceaccounts", "secrets", "configmaps")
PULL_TYPES = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg")
KEYS = {"secret": "global.image.pullSecrets or global.secrets", "configmap": "global.caBundle.configMap"}


def check_state(space: dict | None, namespace: str) -> Diagnosis | None:
    """Say that the namespace is missing, or being deleted."""
    if space is None:
        seen = "it does not exist yet: what it would allow is unknown"
        return Diagnosis(WARNING, f"namespace/{namespace}", seen, f"kubectl create namespace {namespace}")
    if space["metadata"].get("deletionTimestamp") or at(space, "status.phase") == "Terminating":
        told = [one.get("message", "") for one in at(space, "status.conditions", []) if one.get("status") == "True"]
        seen = " ".join(["it is being deleted, and takes nothing new", *(f"({text})" for text in told[:1] if text)])
        remedy = f"wait until it is gone, then kubectl create namespace {namespace}; or name another with -n"
        return Diagnosis(ERROR, f"namespace/{namespace}", seen, remedy)
    return None


def check_accounts(demand: Demand, known: list[dict]) -> Iterator[Diagnosis]:
    """Name ServiceAccounts of pods that do not exist."""
    names = {thing["metadata"]["name"] for thing in known} | demand.makes("ServiceAccount")
    for wanted in dict.fromkeys(group.spec.get("serviceAccountName") or "default" for group in demand.groups):
        if wanted not in names:
            where = "global.serviceAccountName or the part's serviceAccount.name"
            remedy = f"kubectl create serviceaccount {wanted}, or correct {where}"
            if wanted == "default":
                remedy = "see why kube-controller-manager has not made it: kubectl -n kube-system get pods"
            yield Diagnosis(ERROR, f"serviceaccount/{wanted}", "pods run as it, and it does not exist", remedy)


def check_classes(demand: Demand, survey: ClusterSurvey) -> Iterator[Diagnosis]:
    """Name PriorityClasses and RuntimeClasses of pods that do not exist."""
    priorities = {one["metadata"]["name"] for one in survey.of("priorityclasses")} | {*BUILT_IN}
    priorities |= demand.makes("PriorityClass")
    runtimes = {one["metadata"]["name"] for one in survey.of("runtimeclasses")} | demand.makes("RuntimeClass")
    for group in demand.groups:
        wanted = group.spec.get("priorityClassName")
        if wanted and wanted not in priorities and "priorityclasses" not in survey.unseen:
            remedy = "correct global.scheduling.priorityClassName (kubectl get priorityclass)"
            yield Diagnosis(ERROR, f"priorityclass/{wanted}", "pods name it, and it does not exist", remedy)
        runtime = group.spec.get("runtimeClassName")
        if runtime and runtime not in runtimes and "runtimeclasses" not in survey.unseen:
            remedy = "correct runtimeClassName (kubectl get runtimeclass), or create it with the GPU operator"
            yield Diagnosis(ERROR, f"runtimeclass/{runtime}", "pods name it, and it does not exist", remedy)


def check_schedulers(demand: Demand, survey: ClusterSurvey) -> Iterator[Diagnosis]:
    """Name schedulers of pods for which nothing runs."""
    for wanted in dict.fromkeys(group.spec.get("schedulerName", "") for group in demand.groups):
        if not wanted or wanted == "default-scheduler" or "deployments" in survey.unseen:
            continue
        texts = [[thing["metadata"]["name"], *words(thing)] for thing in survey.of("deployments")]
        if not any(wanted in text for one in texts for text in one):
            seen = f"pods ask for the scheduler {wanted}, and no deployment is called so"
            remedy = f"start {wanted}, or leave global.scheduling.schedulerName empty"
            yield Diagnosis(WARNING, f"scheduler/{wanted}", seen, remedy)


def check_references(demand: Demand, survey: ClusterSurvey) -> Iterator[Diagnosis]:
    """Name secrets and configmaps that pods cannot start without."""
    for kind, names in list_required(demand).items():
        known = {thing["metadata"]["name"] for thing in survey.of(NAMES[kind])}
        for name in sorted(names - known) if NAMES[kind] not in survey.unseen else []:
            remedy = f"create it in namespace {survey.namespace}, or correct its name in values ({KEYS[kind]})"
            yield Diagnosis(ERROR, f"{kind}/{name}", "pods need it, and it does not exist", remedy)


def check_pull_secrets(demand: Demand, secrets: list[dict]) -> Iterator[Diagnosis]:
    """Name Secrets for pulling that are of a type with which no node pulls: it passes over them without a word."""
    pulls = {one["name"] for group in demand.groups for one in group.spec.get("imagePullSecrets") or []}
    for thing in secrets:
        name, kind = thing["metadata"]["name"], thing.get("type")
        if name in pulls and kind and kind not in PULL_TYPES:
            seen = f"it is to pull images, and its type is {kind}: nodes take {PULL_TYPES[0]} alone"
            remedy = f"make it anew: kubectl create secret docker-registry {name} --docker-server ... (delete it first)"
            yield Diagnosis(ERROR, f"secret/{name}", seen, remedy)


def check_keys(demand: Demand, survey: ClusterSurvey) -> Iterator[Diagnosis]:
    """Name ConfigMaps that exist, and lack a key that pods mount or read."""
    held = {one["metadata"]["name"]: {*(one.get("data") or {}), *(one.get("binaryData") or {})}
            for one in survey.of("configmaps")}  # fmt: skip
    for name, key in dict.fromkeys(found for group in demand.groups for found in list_keys(group.spec)):
        if name in held and key not in held[name]:
            has = several(sorted(held[name])) or "none"
            mine = at(demand.values, "global.caBundle.configMap") == name
            where = "global.caBundle.key" if mine else "what names it in values (env, volumes)"
            remedy = f"add it, or correct {where} (it has {has})"
            yield Diagnosis(
                ERROR, f"configmap/{name}", f"pods need its key {key}, and it has none of that name", remedy
            )


def check_sidecars(space: dict, demand: Demand) -> Iterator[Diagnosis]:
    """Name a mesh that puts its sidecar into pods of the namespace that do not refuse it, as the chart's do Istio's."""
    labels = at(space, "metadata.labels", {}) | at(space, "metadata.annotations", {})
    if labels.get("linkerd.io/inject") == "enabled":
        seen = "Linkerd puts its proxy into the pods: it keeps finished pods alive, and hinders NCCL"
        remedy = (
            "set global.training.podAnnotations: {linkerd.io/inject: disabled}, and the same for dataset and launcher"
        )
        if not all(at(group.template, "metadata.annotations", {}).get("linkerd.io/inject") for group in demand.groups):
            yield Diagnosis(WARNING, f"namespace/{space['metadata']['name']}", seen, remedy)


def check_ambient_mesh(space: dict, demand: Demand) -> Iterator[Diagnosis]:
    """Name Istio's ambient mode, which no annotation of a pod refuses that is for sidecars."""
    if at(space, "metadata.labels", {}).get("istio.io/dataplane-mode") == "ambient":
        key = "istio.io/dataplane-mode"
        if not all(group.labels.get(key) == "none" for group in demand.training):
            seen = "Istio's ambient mode sends the traffic of its pods through ztunnel: it encrypts and slows NCCL's"
            remedy = f"set global.training.podLabels: {{{key}: none}}"
            yield Diagnosis(WARNING, f"namespace/{space['metadata']['name']}", seen, remedy)


def required_level(demand: Demand) -> str:
    """Return the Pod Security level that the pods need for what values ask: privileged, baseline or restricted."""
    level = "restricted"
    for group in demand.groups:
        spec = group.spec
        if spec.get("hostNetwork") or spec.get("hostPID") or spec.get("hostIPC"):
            return "privileged"
        if any("hostPath" in volume for volume in spec.get("volumes") or []):
            return "privileged"
        for one in [spec, *spec.get("initContainers", []), *spec.get("containers", [])]:
            own = one.get("securityContext") or {}
            added = {*at(own, "capabilities.add", [])}
            if own.get("privileged") or added - BASELINE:
                return "privileged"
            if own.get("runAsNonRoot") is False or own.get("runAsUser") == 0 or added - {"NET_BIND_SERVICE"}:
                level = "baseline"
    return level


def check_security(survey: ClusterSurvey, demand: Demand) -> Diagnosis | None:
    """Say that the namespace enforces a Pod Security level that the pods do not pass."""
    order = ("privileged", "baseline", "restricted")
    enforced, asks = survey.enforced_level(), required_level(demand)
    if enforced not in order or order.index(enforced) <= order.index(asks):
        return None
    name = survey.namespace
    seen = f"it enforces Pod Security level {enforced}, and the run's pods need {asks}"
    remedy = f"kubectl label namespace {name} --overwrite {ENFORCE}={asks}, or take out of " \
        "values what needs it: rdma, unrestricted, hostPath volumes"  # fmt: skip
    return Diagnosis(ERROR, f"namespace/{name}", seen, remedy)


def examine(survey: ClusterSurvey, demand: Demand) -> Check:
    """Check the namespace and what the run needs in it."""
    space, title = survey.space(), "namespace"
    unseen = {kind: why for kind, why in survey.unseen.items() if kind in READ}
    unproven = [f"{kind}: {why}" for kind, why in unseen.items()]
    wrong = [*check_classes(demand, survey), *check_schedulers(demand, survey)]
    if "namespace" not in unseen and (bad := check_state(space, survey.namespace)):
        return check(title, [], [bad, *wrong], unproven)
    ranges = survey.of("limitranges")
    if "serviceaccounts" not in unseen:
        wrong += check_accounts(demand, survey.of("serviceaccounts"))
    wrong += [
        *check_references(demand, survey),
        *check_pull_secrets(demand, survey.of("secrets")),
        *check_keys(demand, survey),
    ]
    wrong += references.examine(demand, survey)
    if space:
        wrong += [
            *check_sidecars(space, demand),
            *check_ambient_mesh(space, demand),
            *filter(None, [check_security(survey, demand)]),
        ]
    for thing in survey.of("resourcequotas"):
        wrong += quotas.check_quota(thing, demand, ranges)
    for thing in ranges:
        wrong += quotas.check_limits(thing, demand, ranges)
    level = survey.labels().get(ENFORCE, "no Pod Security level")
    counts = f"{len(survey.of('resourcequotas'))} quotas, {len(ranges)} limit ranges"
    return check(title, [f"{survey.namespace}: {level}, {counts}"], wrong, unproven)
