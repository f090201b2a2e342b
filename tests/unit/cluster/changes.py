"""Ways to make the sound cluster, or the run that is asked of it, another: for tests of doctor."""

import copy
from collections.abc import Callable

from tests.unit.cluster.clusters import BOUND, NAMESPACE, VALUES, found, sound, thing
from trainyard.cluster.checks.diagnosis import Diagnosis
from trainyard.cluster.checks.probes import Shown
from trainyard.cluster.survey import ClusterSurvey

Change = Callable[[ClusterSurvey], object]


def of(seen: ClusterSurvey, kind: str, name: str) -> dict:
    """Return an object of the cluster, to be changed."""
    return next(one for one in seen.objects[kind] if one["metadata"]["name"] == name)


def drop(kind: str, name: str) -> Change:
    """Return a change that takes an object away."""
    return lambda seen: seen.objects[kind].remove(of(seen, kind, name))


def add(kind: str, *things: dict) -> Change:
    """Return a change that adds objects."""
    return lambda seen: seen.objects.setdefault(kind, []).extend(copy.deepcopy(things))


def change(kind: str, name: str, path: str, value: object) -> Change:
    """Return a change of one field of an object, at a path with spaces between its keys."""

    def do(seen: ClusterSurvey) -> None:
        *parents, last = path.split()
        inner = of(seen, kind, name)
        for key in parents:
            inner = inner[int(key)] if isinstance(inner, list) else inner[key]
        inner[int(last) if isinstance(inner, list) else last] = value

    return do


def condition(kind: str, status: str, message: str = "") -> Change:
    """Return a change of a condition of the node gpu-1."""

    def do(seen: ClusterSurvey) -> None:
        held = of(seen, "nodes", "gpu-1")["status"]["conditions"]
        held[:] = [one for one in held if one["type"] != kind]
        held.append({"type": kind, "status": status, "message": message, "reason": "KubeletSaysSo"})

    return do


def quota(key: str, most: str, used: str = "0") -> Change:
    status = {"used": {key: used}}
    return add("resourcequotas", thing("ResourceQuota", "team", NAMESPACE, spec={"hard": {key: most}}, status=status))


def limit(kind: str, **bounds: dict) -> Change:
    return add("limitranges", thing("LimitRange", "team", NAMESPACE, spec={"limits": [{"type": kind, **bounds}]}))


def policy(*types: str, **rules: list) -> Change:
    spec = {"podSelector": {}, "policyTypes": list(types), **rules}
    return add("networkpolicies", thing("NetworkPolicy", "deny", NAMESPACE, "networking.k8s.io/v1", spec=spec))


def both(*changes: Change) -> Change:
    return lambda seen: [one(seen) for one in changes]


def values(**over: object) -> dict:
    """Return the run's values with others at dotted paths, whose dots are written __."""
    changed = copy.deepcopy(VALUES)
    for path, value in over.items():
        *parents, last = path.split("__")
        inner = changed
        for key in parents:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return changed


def check_named(
    do: Change, level: str, name: str, words: str, remedy: str, *, asked: dict = VALUES, shown: Shown = BOUND
) -> list[Diagnosis]:
    """Return what doctor finds on the changed cluster; one of it must be of this object, and say this."""
    seen = sound()
    do(seen)
    wrong = found(seen, asked, shown)
    assert any(
        (one.level, one.object) == (level, name) and words in one.seen and remedy in one.remedy for one in wrong
    ), wrong
    return wrong
