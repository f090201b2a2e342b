"""Storage: whether the claims of a run would be bound: classes, drivers, volumes, and what a probe claim has shown."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from trainyard.cluster.checks import placement
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
from trainyard.cluster.demand import Demand, PodGroup, at
from trainyard.cluster.survey import ClusterSurvey

DEFAULT = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
BY_HAND = "kubernetes.io/no-provisioner"
RWX, RWO = "ReadWriteMany", "ReadWriteOnce"
FOLDER, DISK = "a folder of a node", "a disk of one node"
# What else may be said of each: the same folder may be shared storage that every node mounts
MOUNTED = {FOLDER: ", unless every node mounts the same storage there", DISK: ""}


class Probe(NamedTuple):
    """The outcome of a probe claim."""

    storage_class: str  # empty: the default's
    mode: str
    bound: bool
    seconds: float
    said: str = ""  # the provisioner's or scheduler's words, where it was not bound
    unproven: str = ""  # why it proves nothing, where it does not
    place: str = ""  # where its files are, if that is one node: FOLDER or DISK


def is_default(thing: dict) -> bool:
    """Whether a StorageClass is the cluster's default."""
    return any((thing["metadata"].get("annotations") or {}).get(key) == "true" for key in DEFAULT)


def default(classes: list[dict]) -> dict | None:
    """Return the default StorageClass: of several, the newest."""
    found = [thing for thing in classes if is_default(thing)]
    return max(found, key=lambda thing: thing["metadata"].get("creationTimestamp", ""), default=None)


def chosen(claim: dict, classes: list[dict]) -> dict | None:
    """Return the StorageClass of a claim; None where there is none of that name, or no default."""
    wanted = claim["spec"].get("storageClassName")
    if wanted is None:
        return default(classes)
    return find_by_name(classes, wanted)


def shares(claim: dict) -> bool:
    """Whether a claim asks for a volume that many nodes write."""
    return RWX in claim["spec"].get("accessModes", [])


def key(claim: dict) -> str:
    """Return where values describe a claim."""
    return f"global.storage.{'data' if claim['metadata']['name'].endswith('data') else 'results'}"


def check_class(claim: dict, classes: list[dict]) -> Iterator[Diagnosis]:
    """Name a claim whose StorageClass does not exist, or that needs a default where there is none."""
    wanted, names = claim["spec"].get("storageClassName"), [thing["metadata"]["name"] for thing in classes]
    if wanted == "" or chosen(claim, classes):
        return
    instead = several(names) or "none: install a storage driver, such as NFS, CephFS or your cloud's (docs/storage.md)"
    label = f"claim/{claim['metadata']['name']}"
    if wanted is None:
        seen = "it names no StorageClass, and the cluster has no default one"
        mark = """annotate storageclass NAME storageclass.kubernetes.io/is-default-class=true"""
        yield Diagnosis(ERROR, label, seen, f"set {key(claim)}.storageClass to one of {instead}; or kubectl {mark}")
    else:
        seen = f"StorageClass {wanted} does not exist"
        yield Diagnosis(ERROR, label, seen, f"set {key(claim)}.storageClass to one of {instead}")


def check_defaults(classes: list[dict]) -> Iterator[Diagnosis]:
    """Name several default StorageClasses, of which the newest counts."""
    found = sorted(thing["metadata"]["name"] for thing in classes if is_default(thing))
    if len(found) > 1:
        seen = f"several StorageClasses are the default: {several(found)}; the newest counts"
        remedy = (
            f"kubectl annotate storageclass {found[-1]} --overwrite {DEFAULT[0]}=false, or name the class in values"
        )
        yield Diagnosis(WARNING, "storageclasses", seen, remedy)


def check_driver(thing: dict, survey: ClusterSurvey) -> Iterator[Diagnosis]:
    """Name a class whose CSI driver is not installed, or whose topology no node has."""
    label, provisioner = f"storageclass/{thing['metadata']['name']}", thing.get("provisioner", "")
    csi = [one["metadata"]["name"] for one in survey.of("csidrivers")]
    if re.search(r"csi", provisioner) and provisioner not in csi and "csidrivers" not in survey.unseen:
        seen = f"its driver {provisioner} is not installed: claims stay Pending"
        yield Diagnosis(ERROR, label, seen, f"install {provisioner}, or name another class under global.storage")
    topologies = thing.get("allowedTopologies") or []
    terms = [{one["key"]: one["values"] for one in term.get("matchLabelExpressions") or []} for term in topologies]
    labels = [node["metadata"].get("labels") or {} for node in survey.of("nodes")]
    if (
        terms
        and labels
        and not any(all(one.get(name) in values for name, values in term.items()) for term in terms for one in labels)
    ):
        seen = f"its allowedTopologies name no node of this cluster: {several(str(term) for term in terms)}"
        yield Diagnosis(ERROR, label, seen, "correct them, or name another class under global.storage")


def check_driver_nodes(thing: dict, survey: ClusterSurvey, demand: Demand) -> Iterator[Diagnosis]:
    """Name nodes of a run on which the class's driver does not run: pods there could not mount its volumes."""
    provisioner, csinodes = thing.get("provisioner", ""), survey.of("csinodes")
    if provisioner not in {one["metadata"]["name"] for one in survey.of("csidrivers")} or not csinodes:
        return
    has = {one["metadata"]["name"] for one in csinodes
           if any(each["name"] == provisioner for each in one["spec"].get("drivers") or [])}  # fmt: skip
    for group in demand.training:
        fits = [
            one["metadata"]["name"] for one in survey.of("nodes") if not list(placement.hindrances(group.spec, one))
        ]
        lacking = sorted(set(fits) - has)
        if lacking:
            seen = f"its driver {provisioner} does not run on {several(lacking)}, where pods of the run may be placed"
            remedy = "give the driver's DaemonSet the tolerations of these nodes (kubectl get daemonset -A)"
            yield Diagnosis(WARNING, f"storageclass/{thing['metadata']['name']}", seen, remedy)
            return


def check_manual_volumes(claim: dict, volumes: list[dict]) -> Iterator[Diagnosis]:
    """Name a claim for volumes made by hand for which there is none."""
    wanted, name = claim["spec"].get("volumeName"), claim["spec"].get("storageClassName") or ""
    label, modes = f"claim/{claim['metadata']['name']}", set(claim["spec"].get("accessModes", []))
    size = amount(claim["spec"]["resources"]["requests"]["storage"])
    fits = []
    for volume in volumes:
        spec, meta = volume["spec"], volume["metadata"]
        reasons = []
        if at(volume, "status.phase") not in ("Available", None):
            reasons.append(f"is {at(volume, 'status.phase')}")
        if (spec.get("storageClassName") or "") != name:
            reasons.append(f"is of class {spec.get('storageClassName') or 'none'}")
        if not modes <= set(spec.get("accessModes", [])):
            reasons.append(f"has {several(spec.get('accessModes', []))}")
        if amount(at(spec, "capacity.storage", 0)) < size:
            reasons.append(f"has {at(spec, 'capacity.storage', 0)}")
        if meta["name"] == wanted and reasons:
            seen = f"its volume {wanted} {', '.join(reasons)}, and it asks for {several(sorted(modes))}, {size} bytes"
            yield Diagnosis(ERROR, label, seen, f"correct {key(claim)}, or that volume: kubectl describe pv {wanted}")
            return
        fits += [] if reasons else [meta["name"]]
    if wanted and wanted not in [one["metadata"]["name"] for one in volumes]:
        seen = f"its volume {wanted} does not exist"
        yield Diagnosis(ERROR, label, seen, f"create it, or correct {key(claim)}.volumeName (kubectl get pv)")
    elif not wanted and not fits:
        seen = f"no volume is free that fits it: class {name or 'none'}, {several(sorted(modes))}"
        yield Diagnosis(ERROR, label, seen, f"create a PersistentVolume, or set {key(claim)}.storageClass")


def find_place(volume: Mapping) -> str:
    """Return where the files of a volume are, if that is one node alone: FOLDER or DISK; else nothing."""
    spec = volume.get("spec") or {}
    terms = at(spec, "nodeAffinity.required.nodeSelectorTerms", [])
    keys = {one["key"] for term in terms for one in term.get("matchExpressions") or []}
    if "local" in spec or "kubernetes.io/hostname" in keys:
        return DISK
    return FOLDER if "hostPath" in spec else ""


def level(where: str) -> str:
    """Return how bad it is that files are on one node."""
    return ERROR if where == DISK else WARNING


def is_scattered(demand: Demand, nodes: list[dict]) -> bool:
    """Whether pods of a run may be on several nodes of this cluster."""
    return demand.spreads and len(list_able(demand.training, nodes)) > 1


def list_able(groups: Iterable[PodGroup], nodes: list[dict]) -> set[str]:
    """Return the names of the nodes on which pods of any of these groups may be placed."""
    return {one["metadata"]["name"] for group in groups for one in placement.fitting_nodes(group.spec, nodes)}


def explain_place(claim: dict, probe: Probe) -> Diagnosis:
    """Say that a class binds a claim, with files that pods on other nodes do not see."""
    which = f"{probe.storage_class or 'the default StorageClass'} binds {probe.mode}, and its volume is {probe.place}"
    seen = f"{which}: pods on several nodes would not see each other's files"
    remedy = f"set {key(claim)}.storageClass to one that shares volumes (docs/storage.md){MOUNTED[probe.place]}"
    return Diagnosis(level(probe.place), f"claim/{claim['metadata']['name']}", seen, remedy)


def check_capacity(claim: dict, thing: dict, survey: ClusterSurvey) -> Iterator[Diagnosis]:
    """Name a claim that is larger than what its driver says that it can make anywhere.

    Drivers tell it of classes that wait for a pod, as the scheduler reads it: of others most say nothing
    (https://github.com/kubernetes-csi/external-provisioner#capacity-support).
    """
    drivers = {one["metadata"]["name"]: one for one in survey.of("csidrivers")}
    name, size = thing["metadata"]["name"], amount(claim["spec"]["resources"]["requests"]["storage"])
    tells = at(drivers.get(thing.get("provisioner", ""), {}), "spec.storageCapacity", False)
    if not tells or thing.get("volumeBindingMode") != "WaitForFirstConsumer":
        return
    rooms = [amount(one.get("maximumVolumeSize") or one.get("capacity") or 0)
             for one in survey.of("csistoragecapacities") if one.get("storageClassName") == name]  # fmt: skip
    if "csistoragecapacities" not in survey.unseen and max(rooms, default=0) < size:
        most = show(max(rooms, default=amount(0)), "storage")
        seen = f"its driver has room for volumes of {most} at most, and the claim asks {show(size, 'storage')}"
        remedy = f"set {key(claim)}.size to less, or add storage behind StorageClass {name}"
        yield Diagnosis(ERROR, f"claim/{claim['metadata']['name']}", seen, remedy)


def judge(
    claim: dict, probe: Probe, probes: Sequence[Probe], demand: Demand, others: Iterable[str], *, scattered: bool
) -> Iterator[Diagnosis]:
    """Explain a claim of a run whose like, the probe, was not bound; name what was (`scattered`: is_scattered)."""
    if probe.bound or probe.unproven:
        return
    able = [one for one in probes if one.bound]
    sharing = next((one for one in able if one.mode == RWX and not (one.place and scattered)), None)
    single = next((one for one in able if one.mode == RWO and one.storage_class == probe.storage_class), None)
    which = f"StorageClass {probe.storage_class}" if probe.storage_class else "the default StorageClass"
    seen = f"{which} has not bound a {probe.mode} claim in {probe.seconds:.0f} s: {probe.said or 'it said nothing'}"
    if sharing and probe.mode == RWX:
        remedy = f"set {key(claim)}.storageClass: {sharing.storage_class}, which binds {RWX}"
    elif single and not demand.spreads:
        remedy = f"set {key(claim)}.accessModes: [{RWO}], which it binds, for this run on one node"
    elif single:
        remedy = f"install a StorageClass that shares volumes (docs/storage.md) and set {key(claim)}.storageClass; "
        remedy += f"or set global.training.nodes: 1 with accessModes: [{RWO}]"
    else:
        rest = several(sorted(set(others) - {probe.storage_class}))
        remedy = f"see its provisioner: kubectl get pods -A; or set {key(claim)}.storageClass" + (
            f" to {rest}" if rest else ""
        )
    yield Diagnosis(ERROR, f"claim/{claim['metadata']['name']}", seen, remedy)


def class_and_mode(claim: dict) -> tuple[str, str]:
    """Return the class of a claim, empty for the default one, and its access mode, as a probe has them."""
    return claim["spec"].get("storageClassName") or "", (claim["spec"].get("accessModes") or [RWX])[0]


def is_made_by_hand(claim: dict, thing: dict | None) -> bool:
    """Whether nobody makes a volume for a claim of this class: somebody has made one, or must."""
    spec = claim["spec"]
    return bool(
        spec.get("storageClassName") == "" or spec.get("volumeName") or (thing or {}).get("provisioner") == BY_HAND
    )


def made_claims(demand: Demand, classes: list[dict]) -> Iterator[tuple[dict, dict]]:
    """Yield the claims of a run whose class makes their volumes, with that class."""
    for claim in demand.claims:
        thing = chosen(claim, classes)
        if thing and not is_made_by_hand(claim, thing):
            yield claim, thing


def wanted_probes(demand: Demand, classes: list[dict]) -> list[tuple[str, str]]:
    """Return class and mode of each kind of claim that a run would create, and a probe can stand for."""
    return list(dict.fromkeys(class_and_mode(claim) for claim, _ in made_claims(demand, classes)))


def check_claim(claim: dict, survey: ClusterSurvey, demand: Demand, probes: Sequence[Probe]) -> Iterator[Diagnosis]:
    """Name what keeps a claim of the run without a volume, or with one that its pods cannot share."""
    classes, nodes = survey.of("storageclasses"), survey.of("nodes")
    yield from check_class(claim, classes)
    thing = chosen(claim, classes)
    if is_made_by_hand(claim, thing):
        if "persistentvolumes" not in survey.unseen:
            yield from check_manual_volumes(claim, survey.of("persistentvolumes"))
    elif thing:
        yield from check_capacity(claim, thing, survey)
        for mine in (one for one in probes if (one.storage_class, one.mode) == class_and_mode(claim)):
            others, scattered = [one["metadata"]["name"] for one in classes], is_scattered(demand, nodes)
            yield from judge(claim, mine, probes, demand, others, scattered=scattered)
            if mine.place and scattered:
                yield explain_place(claim, mine)


def examine(
    survey: ClusterSurvey,
    demand: Demand,
    probes: Sequence[Probe],
    unprobed: str = "",
    named: Iterable[Diagnosis] = (),
) -> Check:
    """Check the claims of the run, and the classes that would make their volumes.

    `unprobed`: why no claim was tried; `named`: what is wrong with claims that values name, and that probes left.
    """
    reasons = [f"whether a class binds the claims: {unprobed}"] if unprobed and demand.claims else []
    wrong = list(named)
    if "storageclasses" in survey.unseen:
        return check("storage", wrong=wrong, unproven=[f"storageclasses: {survey.unseen['storageclasses']}", *reasons])
    classes = survey.of("storageclasses")
    for claim in demand.claims:
        wrong += check_claim(claim, survey, demand, probes)
    wrong += check_defaults(classes)
    reasons += [f"whether {one.storage_class or 'the default class'} binds {one.mode}: {one.unproven}"
                for one in probes if one.unproven]  # fmt: skip
    for thing in {one["metadata"]["name"]: one for _, one in made_claims(demand, classes)}.values():
        wrong += [*check_driver(thing, survey), *check_driver_nodes(thing, survey, demand)]
    bound = [f"{one.storage_class or at(default(classes) or {}, 'metadata.name', '')} binds {one.mode} "
             f"(a probe claim, in {one.seconds:.1f} s)" for one in probes if one.bound]  # fmt: skip
    names = several(sorted(one["metadata"]["name"] + (" (default)" if is_default(one) else "") for one in classes))
    return check("storage", [*bound, f"classes: {names or 'none'}"], wrong, reasons)
