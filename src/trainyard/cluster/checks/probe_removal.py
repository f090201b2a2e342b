"""The end of probes: they are removed whatever happens, at an error, at Ctrl-C and at SIGTERM, by their uid and label.

What a killed doctor left is removed by the next. A claim that may hold somebody's volume is kept, and named.
"""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime

from trainyard.cluster import kube
from trainyard.cluster.checks import prepared_volumes, probe_objects
from trainyard.cluster.checks.prepared_volumes import KeptClaim
from trainyard.cluster.errors import KubeError, RefusedError
from trainyard.cluster.findings import age
from trainyard.core.exits import printable

SELECTOR = kube.selector(probe_objects.MARK)
KINDS = ("pods", "persistentvolumeclaims")  # in this order: pods protect their claims
PATIENCE = 30.0  # seconds for probes to go
LATE = 3.0  # seconds that a creation which was interrupted may take


class Made:
    """The objects that this process has created in a namespace, and removes."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.names: dict[tuple[str, str], str] = {}  # by plural and name: the uid, empty before the answer
        self.retained: set[str] = set()  # claims whose class would keep their volumes
        self.kept: list[KeptClaim] = []

    def create(self, plural: str, thing: dict) -> dict:
        """Create a probe; raises KubeError where it is refused."""
        which = plural, thing["metadata"]["name"]
        self.names[which] = ""
        try:
            made = kube.create(plural, self.namespace, thing)
        except RefusedError:
            del self.names[which]  # what has this name is another's
            raise
        self.names[which] = made["metadata"]["uid"]
        return made

    def remove(self) -> list[str]:
        """Remove all of it, pods first, and wait until it is gone; return what could not be removed.

        What may hold somebody's files is in `kept` instead. A creation without an answer may come later than this.
        """
        begun = time.monotonic()
        while True:
            going, left = self._remove_once()
            waited = time.monotonic() - begun
            settled = not (left or self.kept or "" in self.names.values()) or waited > LATE
            if waited > PATIENCE or (settled and not going):
                return left
            time.sleep(0.3)

    def _remove_once(self) -> tuple[int, list[str]]:
        """Delete what is there; return how many objects are going, and what could not be deleted."""
        self.kept.clear()
        going, left = 0, []
        for plural in KINDS:
            try:
                found = self._list(plural)
            except KubeError as error:
                found = []
                left += [self._label(*which, error) for which in self.names if which[0] == plural]
            for thing in found:
                name = thing["metadata"]["name"]
                try:
                    kept = dispose(plural, self.namespace, thing, retained=name in self.retained)
                    self.kept += [kept] if kept else []
                    going += not kept
                except KubeError as error:
                    left.append(self._label(plural, name, error))
        return going, left

    def _label(self, plural: str, name: str, error: KubeError) -> str:
        """Say what could not be removed, and why."""
        return f"{plural}/{name} in namespace {self.namespace}: {error}"

    def _list(self, plural: str) -> list[dict]:
        """Return those of its objects that are there: by uid; one whose creation had no answer by name and label."""
        found = kube.items(plural, self.namespace, SELECTOR)
        known = [self.names.get((plural, one["metadata"]["name"])) for one in found]
        return [one for one, uid in zip(found, known, strict=True) if uid in ("", one["metadata"]["uid"])]


def dispose(plural: str, namespace: str, thing: dict, *, retained: bool = False) -> KeptClaim | None:
    """Delete a probe as it was seen, or return why it must be kept; of a retained volume, make it go with its claim."""
    if thing["metadata"].get("deletionTimestamp"):
        return None
    claim = plural == "persistentvolumeclaims"
    if claim and (kept := prepared_volumes.keep(thing)):
        return kept
    if claim and retained:
        release(thing)
    # a claim that was not bound when its volumes were looked at may be by now
    kube.delete(plural, namespace, thing, probe_objects.MARK, unchanged=claim, at_once=True)
    return None


def release(claim: dict) -> None:
    """Let the volume that was made for a claim go with it, though its class would retain it; unless it has changed."""
    for volume in prepared_volumes.list_held(claim, prepared_volumes.read_all()):
        if not prepared_volumes.is_made_for(volume, claim):
            raise KubeError(f"persistentvolume/{volume['metadata']['name']} was not made for it")
        meta = {key: volume["metadata"][key] for key in ("uid", "resourceVersion")}
        body = {"metadata": meta, "spec": {"persistentVolumeReclaimPolicy": "Delete"}}
        path = f"/api/v1/persistentvolumes/{volume['metadata']['name']}"
        kube.read(path, method="PATCH", body=body, content="application/merge-patch+json")


@contextlib.contextmanager
def removing(namespace: str, now: datetime) -> Iterator[Made]:
    """Yield what notes created objects; remove them all at the end, which neither Ctrl-C nor SIGTERM interrupts.

    What an earlier one has left at `now`, by the API server's clock, is removed first.
    """
    made = Made(namespace)
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if main else None
    swept: list[KeptClaim] = []
    try:
        swept += sweep(namespace, now)
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
            print(printable(f"doctor: remove by hand: {one}"), file=sys.stderr)
        made.kept += swept
        for kept in made.kept:
            label = f"persistentvolumeclaim/{kept.claim} in namespace {kept.namespace}"
            print(printable(f"doctor: {label}: {kept.why}: {kept.remedy()}"), file=sys.stderr)


def sweep(namespace: str, now: datetime) -> list[KeptClaim]:
    """Remove what a doctor that was killed has left; return what of it must be kept."""
    kept, found = [], []
    for plural in KINDS:
        with contextlib.suppress(KubeError):
            found += [
                (plural, one) for one in kube.items(plural, namespace, SELECTOR) if age(one, now) > probe_objects.OLD
            ]
    for plural, thing in found:
        with contextlib.suppress(KubeError):  # the next one tries it again
            kept.append(dispose(plural, namespace, thing))
    return [one for one in kept if one]
