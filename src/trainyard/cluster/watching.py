"""Objects of several kinds, kept current by one list and one watch per kind."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from trainyard.cluster import kube
from trainyard.cluster.errors import KubeError, RefusedError, UnreachableError

PATIENCE = 60.0  # seconds for which an API server may be away, as during its update, before following ends
PAUSES = (0.2, 1, 2, 5)  # seconds between tries meanwhile; the last one again and again


def passes(error: KubeError) -> bool:
    """Whether an error passes: no answer, 410 (the version to watch from is too old), 429 and 5xx (too much to do)."""
    return isinstance(error, UnreachableError) or (
        isinstance(error, RefusedError) and (error.status in (410, 429) or error.status >= 500)
    )


class Watched:
    """A cluster's objects of some kinds; threads keep it current until the process ends or `close` is called.

    `kinds` maps each kind to its label selector. A kind that the cluster does not know has no objects. Raises KubeError
    where the first lists cannot be read; `wait` raises it where watching fails later. With `lenient`, kinds that this
    user may not list, but for pods, have no objects either: `refused` has what the API server said of them.
    """

    def __init__(self, kinds: dict[str, str], namespace: str, *, lenient: bool = False) -> None:
        self.namespace = namespace
        self.refused: list[RefusedError] = []
        self._lenient = lenient
        self._objects: dict[str, dict[str, dict]] = {}  # by kind and uid
        self._changed, self._ended = threading.Event(), threading.Event()
        self._error: KubeError | None = None
        with ThreadPoolExecutor(len(kinds)) as pool:
            starts = {kind: pool.submit(self._list, kind, selector) for kind, selector in kinds.items()}
            versions = {kind: start.result() for kind, start in starts.items()}
        for kind, version in versions.items():
            threading.Thread(target=self._keep, args=(kind, kinds[kind], version), daemon=True).start()

    def objects(self) -> dict[str, list[dict]]:
        """Return the objects of each kind as they are now; later changes do not show in them."""
        return {kind: list(found.values()) for kind, found in self._objects.items()}

    def wait(self, seconds: float) -> None:
        """Return when something changes, or after so many seconds; raises KubeError where watching has failed."""
        self._changed.wait(seconds)
        self._changed.clear()
        if self._error:
            raise self._error

    def close(self) -> None:
        """Begin no watch again; a watch that is open ends with its connection or its time."""
        self._ended.set()

    def _list(self, kind: str, selector: str) -> str | None:
        """List a kind again; return the version to watch from, or None for a kind that is unknown or left out."""
        try:
            found, version = kube.listing(kind, self.namespace, selector) or ([], None)
        except RefusedError as error:
            if not self._lenient or not kube.is_left_out(kind, error):
                raise
            self.refused.append(error)
            found, version = [], None
        self._put(kind, {thing["metadata"]["uid"]: thing for thing in found})
        return version

    def _put(self, kind: str, found: dict[str, dict]) -> None:
        """Replace the objects of a kind by a new dict, which readers on other threads never see half changed."""
        if found != self._objects.get(kind):
            self._objects[kind] = found
            self._changed.set()

    def _keep(self, kind: str, selector: str, version: str | None) -> None:
        """Watch a kind; list it again when the connection breaks, the version is too old, or the server was away."""
        away: float | None = None  # since when
        tries = 0
        while version is not None and not self._ended.is_set():
            begun = time.monotonic()
            try:
                if away is None:
                    version, tries = self._follow(kind, selector, version), 0
                    self._ended.wait(1 - (time.monotonic() - begun))  # a server may end watches at once
                else:
                    version, away = self._list(kind, selector), None
            except KubeError as error:
                away = away or time.monotonic()
                if not passes(error) or time.monotonic() - away > PATIENCE:
                    self._error = error
                    self._changed.set()
                    return
                self._ended.wait(PAUSES[min(tries, len(PAUSES) - 1)])
                tries += 1

    def _follow(self, kind: str, selector: str, version: str) -> str:
        """Take in changes until the server ends the watch; return the version to watch on from."""
        for change, thing in kube.changes(kind, self.namespace, version, selector):
            version = thing["metadata"]["resourceVersion"]
            if change == "BOOKMARK":
                continue
            uid = thing["metadata"]["uid"]
            others = {key: one for key, one in self._objects[kind].items() if key != uid}
            self._put(kind, others if change == "DELETED" else self._objects[kind] | {uid: thing})
        return version
