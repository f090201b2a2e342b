"""Probes: claims and pods that live for seconds and show whether storage binds, images are pulled and names resolve.

They carry the label `app.kubernetes.io/managed-by: trainyard-doctor` and a generated name, and are removed whatever
happens: at an error, at Ctrl-C and at SIGTERM. What a killed one left is removed by the next.
"""

import contextlib
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from trainyard.cluster import kube, survey
from trainyard.cluster.checks import probe_objects, volumes
from trainyard.cluster.checks.probe_objects import OLD, at_hand
from trainyard.cluster.checks.volumes import Probe
from trainyard.cluster.demand import Demand, images
from trainyard.cluster.errors import KubeError, RefusedError
from trainyard.cluster.findings import age, when
from trainyard.cluster.survey import ClusterSurvey

SELECTOR = ",".join(f"{key}={value}" for key, value in probe_objects.MARK.items())
KINDS = ("pods", "persistentvolumeclaims")
SETTLED = 6  # seconds after a first complaint in which it may still come right
PULLING = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
STARTING = ("CreateContainerError", "RunContainerError", "CreateContainerConfigError")
SHELLESS = re.compile(r"executable file not found|no such file")


class Start(NamedTuple):
    """The outcome of a pod with one of the run's images."""

    image: str
    named: bool  # by the user, or the run's; else one that a node happened to have
    started: bool
    names: str = ""  # whether a name resolved: yes, no, or nothing known
    said: str = ""  # why it did not start
    unproven: str = ""
    logs: str = ""  # why its log cannot be read


class Shown(NamedTuple):
    """The results of the probes."""

    claims: list[Probe]
    starts: list[Start]
    unproven: list[str]
    why: str = ""  # why nothing was probed


NOTHING = Shown([], [], [])


class Made:
    """The objects that this process has created in a namespace, and removes."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.names: list[tuple[str, str]] = []  # plural and name, before they are created
        self.retained: set[str] = set()  # claims whose class would keep their volumes

    def create(self, plural: str, thing: dict) -> dict:
        """Create a probe; raises KubeError where it is refused."""
        self.names.append((plural, thing["metadata"]["name"]))
        return kube.create(plural, self.namespace, thing)

    def remove(self) -> list[str]:
        """Remove all of it, pods first, and wait until it is gone; return what could not be removed."""
        left = []
        for plural, name in sorted(self.names, reverse=True):  # pods, then claims, which pods protect
            try:
                self._delete(plural, name)
            except KubeError as error:
                left.append(f"{plural}/{name} in namespace {self.namespace}: {error}")
        end = time.monotonic() + 30
        while time.monotonic() < end and not left:
            try:
                found = [(kind, one["metadata"]) for kind in KINDS for one in self._list(kind)]
                for kind, meta in found:
                    if not meta.get("deletionTimestamp"):  # a creation that was interrupted came after the deletion
                        self._delete(kind, meta["name"])
            except KubeError:
                break
            if not found:
                break
            time.sleep(0.3)
        return left

    def _list(self, plural: str) -> list[dict]:
        """Return those of its objects that are there."""
        found = kube.items(plural, self.namespace, SELECTOR)
        return [one for one in found if (plural, one["metadata"]["name"]) in self.names]

    def _delete(self, plural: str, name: str) -> None:
        """Delete one of its objects, with the volume of a claim."""
        if name in self.retained:
            release(self.namespace, name)
        remove(plural, self.namespace, name)


def release(namespace: str, called: str) -> None:
    """Let the volume of a bound claim go with the claim, though its class would retain it."""
    volume = ((current("persistentvolumeclaims", namespace, called) or {}).get("spec") or {}).get("volumeName")
    if volume:
        body = {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}
        path = f"/api/v1/persistentvolumes/{volume}"
        kube.read(path, method="PATCH", body=body, content="application/merge-patch+json")


def remove(plural: str, namespace: str, name: str) -> None:
    """Delete an object at once; it may be gone already."""
    try:
        path = f"{kube.require_kind(plural).address(namespace)}/{name}"
        kube.read(path, method="DELETE", body={"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0})
    except RefusedError as error:
        if error.status != 404:
            raise


@contextlib.contextmanager
def removing(namespace: str) -> Iterator[Made]:
    """Yield what notes created objects; remove them all at the end, which neither Ctrl-C nor SIGTERM interrupts."""
    made = Made(namespace)
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if main else None
    try:
        sweep(namespace)
        yield made
    finally:
        held = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
        if main:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        left = made.remove()
        if main:
            signal.signal(signal.SIGINT, held)
            signal.signal(signal.SIGTERM, before)
        for one in left:
            print(f"doctor: remove by hand: {one}", file=sys.stderr)


def sweep(namespace: str) -> None:
    """Remove what a doctor that was killed has left."""
    for plural in KINDS:
        with contextlib.suppress(KubeError):
            for thing in kube.items(plural, namespace, SELECTOR):
                if age(thing, datetime.now(UTC)) > OLD:
                    remove(plural, namespace, thing["metadata"]["name"])


def events(namespace: str, thing: dict) -> list[dict]:
    """Return the events of an object, the latest last."""
    fields = f"involvedObject.uid={thing['metadata']['uid']}"
    found = kube.items("events", namespace, fields=fields)
    return sorted(found, key=when)


def complaint(namespace: str, thing: dict) -> str:
    """Return the last warning about an object, or why it is not bound; empty where there is none."""
    final = ("FailedBinding", "ProvisioningFailed")
    said = [one for one in events(namespace, thing) if one.get("type") == "Warning" or one.get("reason") in final]
    return " ".join(said[-1]["message"].split()) if said else ""


def scheduling_failure(state: dict) -> str:
    """Return why the scheduler has no node for a pod; empty where it has one, or has not looked."""
    for one in state.get("status", {}).get("conditions") or []:
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return str(one.get("message", ""))
    return ""


class ProbeWait(NamedTuple):
    """A probe claim that has been created."""

    probe: Probe  # its class and mode
    claim: str
    pod: str  # that uses it, where its class waits for one


def bind(made: Made, wanted: list[tuple[str, str]], context: "Context", seconds: float) -> list[Probe]:
    """Create a claim for each class and mode, with a pod where a class waits for one; return what became of them."""
    found, waiting, begun = [], [], time.monotonic()
    for which, mode in wanted:
        probe, thing = Probe(which, mode, False, 0.0), context.storage_class(which)
        if why := context.unsafe(thing):
            found.append(probe._replace(unproven=why))
            continue
        one = ProbeWait(
            probe,
            probe_objects.name(),
            probe_objects.name() if (thing or {}).get("volumeBindingMode") == "WaitForFirstConsumer" else "",
        )
        if (thing or {}).get("reclaimPolicy") == "Retain":
            made.retained.add(one.claim)
        try:
            made.create("persistentvolumeclaims", probe_objects.claim(one.claim, which, mode))
            if one.pod:
                holder = probe_objects.pod(one.pod, context.image, context.policy, context.like, [one.claim])
                made.create("pods", holder)
            waiting.append(one)
        except RefusedError as error:
            found.append(probe._replace(unproven=f"the probe was refused: {error}"))
    return found + [wait(made.namespace, one, begun, seconds) for one in waiting]


def wait(namespace: str, one: ProbeWait, begun: float, seconds: float) -> Probe:
    """Wait until a probe claim is bound, or its provisioner or the scheduler has refused for some seconds."""
    first = 0.0
    while True:
        probe = one.probe._replace(seconds=time.monotonic() - begun)
        state = current("persistentvolumeclaims", namespace, one.claim)
        if state is None:
            return probe._replace(unproven="the probe claim was deleted by somebody")
        if state.get("status", {}).get("phase") == "Bound":
            return probe._replace(bound=True, place=read_place(state["spec"].get("volumeName", "")))
        said, holder = complaint(namespace, state), current("pods", namespace, one.pod) if one.pod else None
        nowhere = scheduling_failure(holder or {})
        ours = nowhere and not re.search(r"persistentvolumeclaim|[Vv]olume|bind", nowhere)
        first = first or (time.monotonic() if said or ours else 0.0)
        if probe.seconds > seconds or (first and time.monotonic() - first > SETTLED):
            if ours and not said:
                return probe._replace(unproven=f"the probe pod finds no node: {nowhere}")
            return probe._replace(said=said or nowhere)
        time.sleep(0.4)


def read_place(volume: str) -> str:
    """Return where a volume's files are, if that is one node alone; nothing where this user may not look."""
    with contextlib.suppress(KubeError):
        return volumes.find_place(kube.read(f"/api/v1/persistentvolumes/{volume}"))
    return ""


def current(plural: str, namespace: str, called: str) -> dict | None:
    """Return an object as it is now; None where it is gone."""
    return next(iter(kube.items(plural, namespace, fields=f"metadata.name={called}")), None)


class Context:
    """The state that all probes of one doctor share: classes, and the image, place and rights of their pods."""

    def __init__(self, seen: ClusterSurvey, demand: Demand, image: str) -> None:
        self.classes = seen.of("storageclasses")
        training = demand.training
        self.like = training[0].spec if training else {}
        self.policy = "Never"
        self.image = at_hand(seen.of("nodes")) or "registry.k8s.io/pause:3.10"  # where no node has it, it never starts
        self.pulls = self.like.get("containers", [{}])[0].get("imagePullPolicy", "IfNotPresent")
        self.patches: bool | None = None
        self.named = [image] if image else ([] if demand.placeholder else images(demand))

    def storage_class(self, which: str) -> dict | None:
        """Return a class by name, or the default one."""
        spec = {"storageClassName": which} if which else {}
        return volumes.chosen({"spec": spec}, self.classes)

    def unsafe(self, thing: dict | None) -> str:
        """Return why a class must not be probed: its volume would stay; empty where it may be."""
        if (thing or {}).get("reclaimPolicy") != "Retain":
            return ""
        if self.patches is None:
            self.patches = survey.may("patch", "persistentvolumes", "")
        return "" if self.patches else "its class retains volumes (reclaimPolicy), and a probe would leave one behind"


def start(made: Made, wanted: Start, context: Context) -> tuple[str, str]:
    """Create a pod with an image; return its name, or why it was refused."""
    called = probe_objects.name()
    policy = context.pulls if wanted.named else "Never"
    try:
        made.create("pods", probe_objects.pod(called, wanted.image, policy, context.like, []))
    except RefusedError as error:
        return "", f"the probe pod was refused: {error}"
    return called, ""


def watch(namespace: str, called: str, wanted: Start, end: float) -> Start:
    """Wait until a pod with the image of `wanted` has run its script, or cannot."""
    first, last = 0.0, None
    while True:
        state = current("pods", namespace, called)
        if state is None:
            return wanted._replace(unproven="the probe pod was deleted by somebody")
        result, sure = shown_by(state, wanted)
        if result and last and len(last.said) > len(result.said) > 0:
            result = last  # an older kubelet reports the cause once, and then that it waits
        last, late = result, time.monotonic() > end
        if result and (sure or late or (first and time.monotonic() - first > SETTLED)):
            return result._replace(logs=find_log_fault(namespace, called)) if result.started else result
        first = first or (time.monotonic() if result else 0.0)
        if late:
            return explain_wait(namespace, state, wanted)
        time.sleep(0.4)


def find_log_fault(namespace: str, called: str) -> str:
    """Return why the log of a pod that has run cannot be read; empty where it can, or where this user may not."""
    try:
        kube.request(f"/api/v1/namespaces/{namespace}/pods/{called}/log", accept="*/*")
    except RefusedError as error:
        return str(error) if error.status >= 500 else ""
    except KubeError as error:
        return str(error)
    return ""


def explain_wait(namespace: str, state: dict, wanted: Start) -> Start:
    """Return what is known of a pod that has done nothing in time: it is being pulled, or who has not looked at it."""
    said = complaint(namespace, state)
    if said and "FailedScheduling" not in said:
        return wanted._replace(said=said)
    if not state.get("status", {}).get("conditions"):
        return wanted._replace(said="no scheduler has looked at its pod: is kube-scheduler running?")
    if any(one.get("reason") == "Pulling" for one in events(namespace, state)):
        return wanted._replace(unproven="it is still being pulled: try again with a longer --seconds")
    return wanted._replace(said="its node has not started the pod: is its kubelet running?")


def shown_by(state: dict, wanted: Start) -> tuple[Start | None, bool]:
    """Return what a pod's state shows of its image, and whether that is final; None where nothing yet."""
    if nowhere := scheduling_failure(state):
        return wanted._replace(unproven=f"the probe pod finds no node: {nowhere}"), False
    status = state.get("status", {})
    for one in status.get("containerStatuses") or []:
        if over := one["state"].get("terminated"):
            return read_end(over, wanted), True
        if (waits := one["state"].get("waiting") or {}).get("reason") in (*PULLING, *STARTING):
            text = " ".join(f"{waits['reason']}: {waits.get('message', '')}".split())
            if SHELLESS.search(text):
                return wanted._replace(started=True), True
            return wanted._replace(said=text), waits["reason"] == "InvalidImageName"
    if status.get("phase") == "Failed":
        text = f"{status.get('reason', '')}: {status.get('message', '')}".strip(": ")
        return wanted._replace(said=text or "it failed"), True
    return None, False


def read_end(over: dict, wanted: Start) -> Start:
    """Return what the end of a container shows; where its image has no shell, that it was pulled, and nothing else."""
    text = " ".join(f"{over.get('reason', '')} {over.get('message', '')}".split())
    if told := re.search(r"names=(\w+)", text):
        return wanted._replace(started=True, names=told[1])
    if re.search(r"exec format|exec user process", text):
        return wanted._replace(said=text)
    return wanted._replace(started=True)


def show(seen: ClusterSurvey, demand: Demand, namespace: str, image: str, seconds: float) -> Shown:
    """Probe storage, images and names in a namespace, for so many seconds at most each; leave nothing behind."""
    context, unproven = Context(seen, demand, image), []
    with removing(namespace) as made:
        pods = []
        spare = at_hand(seen.of("nodes"))
        wanted_starts = [Start(text, True, False) for text in context.named[:3]]
        for one in wanted_starts or ([Start(spare, False, False)] if spare else []):
            called, why = start(made, one, context)
            pods += [(called, one)] if called else []
            unproven += [f"image {one.image}: {why}"] if why and one.named else []
        end = time.monotonic() + seconds
        wanted = volumes.wanted_probes(demand, seen.of("storageclasses"))
        claims = bind(made, wanted, context, seconds)
        if failed := [one for one in claims if not one.bound and not one.unproven]:
            claims += bind(made, instead(failed, claims, context), context, min(seconds, 30.0))
        starts = [watch(namespace, called, one, end) for called, one in pods]
    return Shown(claims, starts, unproven)


def instead(failed: list[Probe], probes: list[Probe], context: Context) -> list[tuple[str, str]]:
    """Return what may be bound in place of what was not: the same class on one node, and other classes."""
    tried = {(one.storage_class, one.mode) for one in probes}
    default = volumes.default(context.classes)
    known = default["metadata"]["name"] if default else ""
    others = [one["metadata"]["name"] for one in context.classes if one.get("provisioner") != volumes.BY_HAND]
    found = [(one.storage_class, volumes.RWO) for one in failed if one.mode == volumes.RWX]
    found += [
        (which, volumes.RWX) for which in others if any(which not in (one.storage_class or known,) for one in failed)
    ][:3]
    return [one for one in dict.fromkeys(found) if one not in tried]
