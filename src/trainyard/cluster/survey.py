"""All that `doctor` reads of a cluster, in a few seconds: lists of objects by kind, and why some could not be read."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, NamedTuple

from trainyard.cluster import certificates, crds, jobs, kube, versions
from trainyard.cluster.certificates import Validity
from trainyard.cluster.errors import KubeError, RefusedError, UnreachableError
from trainyard.cluster.kube import Kind

CORE, APPS, STORAGE = "/api/v1", "/apis/apps/v1", "/apis/storage.k8s.io/v1"
RULES = "/apis/admissionregistration.k8s.io/v1"
RUNNING = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
# Kinds by their plural; those with True are read in all namespaces, the others in the run's own
EVERYWHERE = {
    "nodes": Kind(CORE, "nodes", False),
    "pods": Kind(CORE, "pods"),
    "services": Kind(CORE, "services"),
    "endpointslices": Kind("/apis/discovery.k8s.io/v1", "endpointslices"),
    "persistentvolumes": Kind(CORE, "persistentvolumes", False),
    "storageclasses": Kind(STORAGE, "storageclasses", False),
    "csidrivers": Kind(STORAGE, "csidrivers", False),
    "csinodes": Kind(STORAGE, "csinodes", False),
    "csistoragecapacities": Kind(STORAGE, "csistoragecapacities"),
    "deployments": Kind(APPS, "deployments"),
    "daemonsets": Kind(APPS, "daemonsets"),
    "priorityclasses": Kind("/apis/scheduling.k8s.io/v1", "priorityclasses", False),
    "runtimeclasses": Kind("/apis/node.k8s.io/v1", "runtimeclasses", False),
    "apiservices": Kind("/apis/apiregistration.k8s.io/v1", "apiservices", False),
    "leases": Kind("/apis/coordination.k8s.io/v1", "leases"),
    "validatingwebhookconfigurations": Kind(RULES, "validatingwebhookconfigurations", False),
    "mutatingwebhookconfigurations": Kind(RULES, "mutatingwebhookconfigurations", False),
}
OWN = {
    "resourcequotas": Kind(CORE, "resourcequotas"),
    "limitranges": Kind(CORE, "limitranges"),
    "persistentvolumeclaims": Kind(CORE, "persistentvolumeclaims"),
    "serviceaccounts": Kind(CORE, "serviceaccounts"),
    "networkpolicies": Kind("/apis/networking.k8s.io/v1", "networkpolicies"),
}
KUEUE = ("localqueues", "clusterqueues", "resourceflavors", "workloadpriorityclasses", "admissionchecks", "cohorts")
SPACE = "kubernetes.io/metadata.name"  # the label of every namespace that holds its name
ENFORCE = "pod-security.kubernetes.io/enforce"  # the label of the Pod Security level, if a namespace enforces one
DEFINITIONS = "customresourcedefinitions"
# Karpenter's kind, which EKS Auto Mode has too, and the ConfigMap in which Cluster Autoscaler reports, also of clouds
NODE_POOLS, AUTOSCALER = "nodepools.karpenter.sh", "cluster-autoscaler-status"
NAMES = {"secret": "secrets", "configmap": "configmaps"}  # what is asked for by name, and not read
# What an operator's account must be allowed to do in the run's namespace
RIGHTS = {
    "training-operator": ("create pods", "create services"),
    "mpi-operator": ("create pods", "create services", "create jobs.batch", "update jobs/status.batch"),
    "trainer-controller-manager": ("create jobsets.jobset.x-k8s.io",),
    "jobset-controller": ("create jobs.batch", "create services"),
}
TABLE = (
    "application/json;as=Table;g=meta.k8s.io;v=v1"  # what kubectl get prints: of a Secret its type, not its contents
)


class ClusterSurvey(NamedTuple):
    """The objects that were read, by kind: none of an unknown kind; one that is not readable is in `unseen`."""

    namespace: str
    version: str  # of the API server, such as v1.36.4
    now: datetime  # by the API server's clock
    ahead: float  # seconds by which this machine's clock is ahead of the API server's
    objects: dict[str, list[dict]]
    unseen: dict[str, str]  # by kind: why it could not be read
    failing: str = ""  # what the API server itself says that it lacks
    denied: frozenset[tuple[str, str]] = frozenset()  # operator's program, and what its account may not do
    keeps: bool = True  # this user may create secrets in the namespace, in which helm keeps its release
    certificates: tuple[tuple[str, Validity], ...] = ()  # those of the API server (`server`) and of this user (`user`)

    def of(self, kind: str) -> list[dict]:
        """Return the objects of a kind."""
        return self.objects.get(kind, [])

    def space(self) -> dict | None:
        """Return the run's namespace; None where it does not exist, or cannot be read."""
        return next(iter(self.of("namespace")), None)

    def autoscaler(self) -> str:
        """Return what adds nodes when pods find none, as far as it shows; empty for nothing."""
        known = [one["metadata"]["name"] for one in (*self.of("autoscaler"), *self.of("deployments"))]
        if any("karpenter" in name.lower() for name in known):
            return "Karpenter"
        return "the cluster's autoscaler" if any(name.startswith("cluster-autoscaler") for name in known) else ""

    def labels(self) -> dict[str, str]:
        """Return the labels of the run's namespace, its name among them."""
        held: dict[str, str] = (self.space() or {"metadata": {}})["metadata"].get("labels") or {}
        return {SPACE: self.namespace} | held

    def enforced_level(self) -> str:
        """Return the Pod Security level that the run's namespace enforces."""
        return self.labels().get(ENFORCE, "privileged")


def read(namespace: str) -> ClusterSurvey:
    """Read the cluster; raises KubeError where no API server answers, or it does not know this user."""
    version, now, ahead = clock()
    survey = ClusterSurvey(namespace, version, now, ahead, {}, {})
    looks: dict[str, Callable[[], list[dict]]] = {"namespace": lambda: one(Kind(CORE, "namespaces", False), namespace)}
    for kind, place in EVERYWHERE.items():
        looks[kind] = partial(everything, place, None, RUNNING if kind == "pods" else {})
    for kind, place in OWN.items():
        looks[kind] = partial(everything, place, namespace)
    looks[DEFINITIONS] = definitions
    for kind in KUEUE:
        looks[kind] = partial(kube.items, f"{kind}.kueue.x-k8s.io", namespace if kind == "localqueues" else None)
    looks["trainer-version"] = lambda: configuration(versions.PUBLIC, versions.NAMESPACE)
    looks["autoscaler"] = find_autoscaler
    looks["kueue-configuration"] = lambda: configuration("kueue-manager-config", "kueue-system")
    collect(survey, looks)
    return survey._replace(
        keeps=may("create", "secrets", namespace),
        denied=find_denials(survey),
        failing=failing(),
        certificates=certificates.read_own(),
    )


def find_denials(survey: ClusterSurvey) -> frozenset[tuple[str, str]]:
    """Return what the accounts of the operators may not do in the namespace, as `create pods`; as far as is known."""
    asked = []
    for thing in survey.of("deployments"):
        home, spec = thing["metadata"]["namespace"], thing["spec"]["template"]["spec"]
        account = f"system:serviceaccount:{home}:{spec.get('serviceAccountName', 'default')}"
        for program, rights in RIGHTS.items():
            asked += [(program, right, account) for right in rights if program in thing["metadata"]["name"]]

    def is_denied(program: str, right: str, account: str) -> bool:
        verb, resource = right.split()
        name, _, group = resource.partition(".")
        return not may(verb, name, survey.namespace, group, account)

    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda one: is_denied(*one), asked)
        return frozenset((program, right) for (program, right, _), no in zip(asked, answers, strict=True) if no)


def failing() -> str:
    """Return what an API server says that it lacks; empty where it is ready, or does not say."""
    try:
        kube.request("/readyz", {"verbose": "1"}, accept="*/*")
    except RefusedError as error:
        lacks = re.findall(r"\[-\](\S+) failed", str(error))
        return ", ".join(lacks) or str(error) if error.status >= 500 else ""
    return ""


def read_named(survey: ClusterSurvey, named: dict[str, set[str]]) -> None:
    """Add to a survey which of some secrets and configmaps of the namespace exist."""
    collect(survey, {NAMES[kind]: partial(existing, kind, survey.namespace, names) for kind, names in named.items()})


def read_kinds(survey: ClusterSurvey, kinds: list[str]) -> None:
    """Add to a survey further kinds, those of the namespace and those of the whole cluster, by their full names."""
    collect(survey, {kind: partial(kube.items, kind, survey.namespace) for kind in kinds})


def read_usage(survey: ClusterSurvey, claims: list[str]) -> None:
    """Add to a survey how full claims of the namespace are, as far as a node mounts them and tells this user.

    Most users may not ask a kubelet: then nothing is known, and nothing is said. One node tells enough of a claim.
    """
    mounted: dict[str, set[str]] = {}  # claims, by node
    for pod in survey.of("pods") if claims else []:
        if pod["metadata"].get("namespace") == survey.namespace and (node := pod["spec"].get("nodeName")):
            mounted.setdefault(node, set()).update(jobs.mounted_claims(pod["spec"]) & set(claims))
    found: dict[str, dict] = {}
    for node, names in sorted(mounted.items()):
        if names <= found.keys():
            continue
        try:
            told = kube.read(f"{CORE}/nodes/{node}/proxy/stats/summary", timeout=10.0)
            found |= parse_usage(told, survey.namespace)
        except RefusedError as error:
            if error.status in (401, 403):
                break
        except UnreachableError:
            continue
    survey.objects["volume-usage"] = [found[name] for name in claims if name in found]


def parse_usage(summary: dict, namespace: str) -> dict[str, dict]:
    """Return bytes and inodes of the claims of a namespace that a kubelet's summary has, by claim."""
    return {
        one["pvcRef"]["name"]: one | {"claim": one["pvcRef"]["name"]}
        for pod in summary.get("pods") or []
        for one in pod.get("volume") or []
        if (one.get("pvcRef") or {}).get("namespace") == namespace
    }


def collect(survey: ClusterSurvey, looks: dict[str, Callable[[], list[dict]]]) -> None:
    """Look at several kinds at a time, and add to a survey what is seen, or why it is not."""

    def note(kind: str, look: Callable[[], list[dict]]) -> None:
        try:
            survey.objects[kind] = look()
        except RefusedError as error:
            if error.status == 401:
                raise
            survey.unseen[kind] = "forbidden" if error.status == 403 else str(error)
        except UnreachableError as error:
            survey.unseen[kind] = str(error)

    with ThreadPoolExecutor(12) as pool:
        for waited in [pool.submit(note, kind, look) for kind, look in looks.items()]:
            waited.result()


def clock() -> tuple[str, datetime, float]:
    """Return the API server's version, its time, and the seconds by which this machine's clock is ahead of it.

    The header Date has whole seconds: 0 means that the clocks may be equal.
    """
    before = datetime.now(UTC)
    answer = kube.request("/version")
    after, stamp = datetime.now(UTC), answer.headers.get("Date")
    version = str(kube.parse_answer(answer).get("gitVersion", ""))
    if stamp is None:
        return version, after, 0.0
    first = parsedate_to_datetime(stamp).astimezone(UTC)
    last = first + timedelta(seconds=1)
    ahead = max(0.0, (before - last).total_seconds()) or min(0.0, (after - first).total_seconds())
    return version, first, ahead


def everything(place: Kind, namespace: str | None, query: dict[str, Any] | None = None) -> list[dict]:
    """Return the objects of a kind, with their kind in each; none where the cluster does not know it."""
    try:
        found = kube.read(place.address(namespace), query)
    except RefusedError as error:
        if error.status != 404:
            raise
        return []
    head = {"kind": found.get("kind", "").removesuffix("List"), "apiVersion": found.get("apiVersion", "")}
    return [head | thing for thing in found.get("items") or []]


def one(place: Kind, name: str, namespace: str | None = None, accept: str = "application/json") -> list[dict]:
    """Return an object in a list, which is empty where there is none of that name."""
    try:
        return [kube.read(f"{place.address(namespace)}/{name}", accept=accept)]
    except RefusedError as error:
        if error.status != 404:
            raise
        return []


def definitions() -> list[dict]:
    """Return the CRDs of the jobs that the chart renders, as far as the cluster has them."""
    place = Kind("/apis/apiextensions.k8s.io/v1", DEFINITIONS, False)
    return [thing for kind in crds.NEEDED for thing in one(place, kind)]


def find_autoscaler() -> list[dict]:
    """Return what shows that something adds nodes when pods find none: Karpenter's kind, or the autoscaler's report."""
    pools = kube.known(NODE_POOLS)
    return [{"metadata": {"name": "Karpenter"}}] if pools else configuration(AUTOSCALER, "kube-system")


def configuration(name: str, namespace: str) -> list[dict]:
    """Return the ConfigMap in which a controller tells of itself; none where this user may not look."""
    try:
        return one(Kind(CORE, "configmaps"), name, namespace)
    except RefusedError as error:
        if error.status != 403:
            raise
        return []


def existing(kind: str, namespace: str, names: set[str]) -> list[dict]:
    """Return those of some secrets or configmaps that exist; of secrets the type, and nothing that they hold."""
    place, accept = Kind(CORE, NAMES[kind]), TABLE if kind == "secret" else "application/json"
    found = [thing for name in sorted(names) for thing in one(place, name, namespace, accept)]
    return [parse_row(thing) if thing.get("kind") == "Table" else thing for thing in found]


def parse_row(table: dict) -> dict:
    """Return an object as its table shows it: metadata, and the cells of its row by their columns, in small letters."""
    (first,) = table["rows"]
    cells = zip(table["columnDefinitions"], first["cells"], strict=True)
    return {"metadata": first["object"]["metadata"]} | {column["name"].lower(): cell for column, cell in cells}


def may(verb: str, resource: str, namespace: str, group: str = "", user: str = "") -> bool:
    """Whether this user, or another, may do something in a namespace; True where the API server does not say."""
    name, _, part = resource.partition("/")
    what = {"namespace": namespace, "verb": verb, "resource": name, "subresource": part, "group": group}
    kind = "SubjectAccessReview" if user else "SelfSubjectAccessReview"
    spec: dict[str, Any] = {"resourceAttributes": what}
    if user:  # an account, whose groups the API server does not add by itself
        groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{user.split(':')[2]}"]
        spec |= {"user": user, "groups": groups}
    asked = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    try:
        done = kube.read(f"/apis/authorization.k8s.io/v1/{kind.lower()}s", method="POST", body=asked)
    except KubeError:
        return True
    return bool(done.get("status", {}).get("allowed", True))
