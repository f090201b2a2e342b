"""Probes: claims and pods that live for seconds and show whether storage binds, images are pulled and names resolve."""

import re
import time
from typing import NamedTuple

from trainyard.cluster import kube, survey
from trainyard.cluster.checks import prepared_volumes, probe_objects, volumes
from trainyard.cluster.checks.prepared_volumes import KeptClaim
from trainyard.cluster.checks.probe_objects import at_hand
from trainyard.cluster.checks.probe_removal import Made, removing
from trainyard.cluster.checks.volumes import Probe
from trainyard.cluster.demand import Demand, images
from trainyard.cluster.errors import KubeError, RefusedError
from trainyard.cluster.findings import when
from trainyard.cluster.survey import ClusterSurvey

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
    kept: tuple[KeptClaim, ...] = ()  # claims that hold what somebody has prepared


NOTHING = Shown([], [], [])


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
        probe = Probe(which, mode, False, 0.0)
        try:
            one, why = try_class(made, probe, context)
        except RefusedError as error:
            one, why = None, f"the probe was refused: {error}"
        if one:
            waiting.append(one)
        else:
            found.append(probe._replace(unproven=why))
    return found + [wait(made.namespace, one, begun, seconds) for one in waiting]


def try_class(made: Made, probe: Probe, context: "Context") -> tuple[ProbeWait | None, str]:
    """Create a claim of a class, and a pod where the class waits for one; or return why none may be created.

    Volumes are looked at before each: only with a pod does Kubernetes look for one of a class that waits.
    """
    thing = context.storage_class(probe.storage_class)
    if thing is None:
        return None, "it is not there any more"
    called, holder = thing["metadata"]["name"], probe_objects.name()  # by name, also the default: another may become it
    if why := context.unsafe(thing) or prepared_volumes.forbid(called, probe.mode):
        return None, why
    one = ProbeWait(probe, probe_objects.name(), holder if waits(thing) else "")
    if thing.get("reclaimPolicy") == "Retain":
        made.retained.add(one.claim)
    made.create("persistentvolumeclaims", probe_objects.claim(one.claim, called, probe.mode))
    if one.pod:
        if why := prepared_volumes.forbid(called, probe.mode):
            return None, why
        made.create("pods", probe_objects.pod(one.pod, context.image, context.policy, context.like, [one.claim]))
    return one, ""


def waits(thing: dict) -> bool:
    """Whether a class looks for a volume only when a pod uses the claim."""
    return thing.get("volumeBindingMode") == "WaitForFirstConsumer"


def wait(namespace: str, one: ProbeWait, begun: float, seconds: float) -> Probe:
    """Wait until a probe claim is bound, or its provisioner or the scheduler has refused for some seconds."""
    first = 0.0
    while True:
        probe = one.probe._replace(seconds=time.monotonic() - begun)
        state = current("persistentvolumeclaims", namespace, one.claim)
        if state is None:
            return probe._replace(unproven="the probe claim was deleted by somebody")
        if state.get("status", {}).get("phase") == "Bound":
            return judge_bound(probe, state)
        said, holder = complaint(namespace, state), current("pods", namespace, one.pod) if one.pod else None
        nowhere = scheduling_failure(holder or {})
        ours = nowhere and not re.search(r"persistentvolumeclaim|[Vv]olume|bind", nowhere)
        first = first or (time.monotonic() if said or ours else 0.0)
        if probe.seconds > seconds or (first and time.monotonic() - first > SETTLED):
            if ours and not said:
                return probe._replace(unproven=f"the probe pod finds no node: {nowhere}")
            return probe._replace(said=said or nowhere)
        time.sleep(0.4)


def judge_bound(probe: Probe, claim: dict) -> Probe:
    """Return what a bound claim shows: that its class makes volumes, and where, if this one was made for it."""
    try:
        known = prepared_volumes.read_all()
    except KubeError as error:
        return probe._replace(unproven=prepared_volumes.explain(error))
    if kept := prepared_volumes.judge(claim, known):
        return probe._replace(unproven=kept.why)
    places = [volumes.find_place(one) for one in prepared_volumes.list_held(claim, known)]
    return probe._replace(bound=True, place=max(places, default=""))


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
    with removing(namespace, seen.now) as made:
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
    return Shown(claims, starts, unproven, kept=tuple(made.kept))


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
