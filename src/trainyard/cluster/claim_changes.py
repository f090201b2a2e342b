"""Changes of a release's claims that Kubernetes never allows, named before Helm is called.

The chart cannot name them: it renders the same whatever the cluster holds.
"""

from collections.abc import Iterator, Sequence

from trainyard.cluster import delete, helm, kube
from trainyard.cluster.checks.diagnosis import amount
from trainyard.cluster.checks.volumes import key
from trainyard.cluster.demand import at, documents
from trainyard.cluster.errors import KubeError
from trainyard.cluster.parsing import WrongInputError

CLASSES = "storageclasses.storage.k8s.io"


def refuse_changes(release: str, namespace: str, arguments: Sequence[str]) -> None:
    """Raise WrongInputError where an upgrade would change a claim in a way that the API server refuses.

    `arguments` are Helm's: the chart and its values. Where claims cannot be read, or nothing can be rendered, Helm says
    why.
    """
    try:
        held = {one["metadata"]["name"]: one for one in delete.own_claims(release, namespace)}
        asked = render_claims(release, namespace, arguments) if held else []
    except KubeError:
        return
    found = [(one, held[one["metadata"]["name"]]) for one in asked if one["metadata"]["name"] in held]
    if wrong := [line for one, other in found for line in explain_changes(other, one)]:
        raise WrongInputError("; ".join(wrong))


def render_claims(release: str, namespace: str, arguments: Sequence[str]) -> list[dict]:
    """Return the claims that the chart renders; none where it refuses the values."""
    done = helm.template(release, *arguments, "-n", namespace)
    return [one for one in documents(done.stdout) if one["kind"] == "PersistentVolumeClaim"]


def explain_changes(held: dict, asked: dict) -> Iterator[str]:
    """Yield what a claim cannot become: what it has, what values say of it, and the remedies."""
    spec, wanted, where = held["spec"], asked["spec"], key(asked)
    label, name = f"persistentvolumeclaim/{asked['metadata']['name']}", asked["metadata"]["name"]
    facts = [("accessModes", show_modes(spec), show_modes(wanted))]
    for field, own in (("storageClassName", "storageClass"), ("volumeName", "volumeName")):
        if field in wanted:
            facts.append((own, spec.get(field) or "-", wanted[field] or "-"))
    for own, has, says in facts:
        if has != says:
            again = f"or, if it holds nothing, kubectl delete pvc {name} first"
            write = f"take {where}.{own} out" if (own, has) == ("volumeName", "-") else f"write {where}.{own}: {has}"
            yield f"{label}: its {own} is {has} and never changes, and values say {says}: {write}, {again}"
    if why := explain_size(held, at(wanted, "resources.requests.storage", "")):
        size = at(spec, "resources.requests.storage", "")
        yield f"{label}: {why}: write {where}.size: {size}"


def show_modes(spec: dict) -> str:
    """Return the access modes of a claim as values have them."""
    return f"[{', '.join(sorted(spec.get('accessModes') or []))}]"


def explain_size(held: dict, asked: str) -> str:
    """Say why a claim cannot get the size that values ask for; empty where it can."""
    has = at(held, "spec.resources.requests.storage", asked)
    said = f"its size is {has}, and values say {asked}"
    if amount(asked) == amount(has):
        return ""
    if at(held, "status.phase") != "Bound":
        return f"{said}, and it does not change before the claim is bound"
    if amount(asked) < min(amount(has), amount(at(held, "status.capacity.storage", has))):
        return f"{said}, and a claim never shrinks"
    if amount(asked) > amount(has) and not may_grow(at(held, "spec.storageClassName", "")):
        return f"{said}, and its StorageClass does not let it grow"
    return ""


def may_grow(storage_class: str) -> bool:
    """Whether claims of a class may be enlarged, as far as this user may look."""
    if not storage_class:
        return False
    try:
        found = kube.items(CLASSES, None, fields=f"metadata.name={storage_class}")
    except KubeError:
        return True
    return not found or bool(found[0].get("allowVolumeExpansion"))
