"""Why a release's claims wait, and claims of its names that belong to somebody else."""

from trainyard.cluster.findings import Finding, events_of, name
from trainyard.cluster.remedies import remedy
from trainyard.core.files import value_at

OWNER, OWNER_NAMESPACE = "meta.helm.sh/release-name", "meta.helm.sh/release-namespace"
BY_HELM = ("helm", "argocd", "kube-", "before-first-apply")  # who sets a claim's size, but for a person


def claim(thing: dict, events: list[dict]) -> Finding:
    """Explain a PersistentVolumeClaim."""
    phase = phase_of(thing)
    if thing["metadata"].get("deletionTimestamp"):
        text = "it is being deleted, and pods use it still" if phase == "Bound" else "it is being deleted"
        answer = "wait until the pods that use it have gone, then upgrade"
        if volume := thing["spec"].get("volumeName"):  # whose class mostly says that it goes with its claim
            keep = """'{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'"""
            answer = f"if what it holds is wanted, first kubectl patch pv {volume} -p {keep}; {answer}"
        return Finding(name(thing), "Terminating", text, answer)
    if phase == "Bound":
        return Finding(name(thing), "Bound", sized_by_hand(thing))
    if phase == "Lost":
        text = f"its volume {thing['spec'].get('volumeName')} is gone"
        return Finding(name(thing), phase, text, "restore the volume, or delete the claim and prepare the data again")
    return pending(thing, phase, events)


def sized_by_hand(thing: dict) -> str:
    """Say that a claim of a Helm release was enlarged without Helm, whose next upgrade may be refused; else nothing."""
    if OWNER not in thing["metadata"].get("annotations", {}):
        return ""
    for entry in thing["metadata"].get("managedFields", []):
        sized = "f:storage" in (value_at(entry, "fieldsV1", "f:spec", "f:resources", "f:requests") or {})
        if sized and not entry.get("manager", "").lower().startswith(BY_HELM):
            size = thing["spec"]["resources"]["requests"]["storage"]
            return f"its size, {size}, was set by {entry['manager']}: values must say it too, or an upgrade is refused"
    return ""


def pending(thing: dict, phase: str, events: list[dict]) -> Finding:
    """Explain a claim that has no volume yet."""
    warnings = events_of(thing, events)
    if warnings:
        text = warnings[-1]["message"]
        modes = ", ".join(thing["spec"].get("accessModes", []))
        known = (
            remedy(text)
            or f"the StorageClass could not make a {modes} volume: name another under global.storage.*.storageClass"
        )
        return Finding(name(thing), phase, text, known)
    mine = [e for e in events if e["involvedObject"].get("uid") == thing["metadata"]["uid"]]
    if failed := [e["message"] for e in mine if e.get("reason") == "FailedBinding"]:  # not a warning, but final
        return Finding(
            name(thing), phase, failed[-1], remedy(failed[-1]) or "kubectl get pv: which one should it take?"
        )
    if any(e.get("reason") == "WaitForFirstConsumer" for e in mine):
        return Finding(name(thing), phase, "waits for the first pod that uses it")
    if any(e.get("reason") == "ExternalProvisioning" for e in mine):
        text = next(e["message"] for e in mine if e.get("reason") == "ExternalProvisioning")
        return Finding(name(thing), phase, text, "if this lasts, the provisioner that it names is not running")
    if not thing["spec"].get("storageClassName"):
        text = "the cluster has no default StorageClass"
        return Finding(name(thing), phase, text, "set global.storage.*.storageClass")
    return Finding(name(thing), phase, "not provisioned yet", "kubectl describe pvc shows the provisioner's events")


def others(release: str, claims: list[dict]) -> list[Finding]:
    """Name claims of the release's names that Helm will not take over: another release's, or made without Helm."""
    found = []
    for thing in claims:
        owner = thing["metadata"].get("annotations", {}).get(OWNER)
        if owner == release:
            continue
        which = "data" if thing["metadata"]["name"].endswith("-data") else "results"
        cause = f"it belongs to the release {owner}" if owner else "it was not made by Helm"
        found.append(
            Finding(
                name(thing),
                "another's",
                f"{cause}, so helm install refuses it (invalid ownership metadata)",
                f"set global.storage.{which}.existingClaim: {thing['metadata']['name']} to use it as it is",
            )
        )
    return found


def explain(release: str, objects: dict[str, list[dict]], events: list[dict]) -> list[Finding]:
    """Explain the claims of a release, and those of its names that are another's."""
    own = objects["persistentvolumeclaims"]
    by_argo = any("argocd" in key for c in own for key in c["metadata"].get("annotations", {}) if "tracking-id" in key)
    foreign = [] if by_argo else others(release, objects.get("claims_of_its_name", []))
    known = {finding.object for finding in foreign}
    named = [f for f in (claim(c, events) for c in own) if f.object not in known] + foreign
    return named + explain_existing(objects, events, {finding.object for finding in named})


def explain_existing(objects: dict[str, list[dict]], events: list[dict], known: set[str]) -> list[Finding]:
    """Explain claims that the release's pods mount, are not its own (existingClaim), and are not bound."""
    volumes = [one for pod in objects["pods"] for one in pod["spec"].get("volumes") or []]
    used = {one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one}
    found = [one for one in objects.get("claims_of_namespace", []) if one["metadata"]["name"] in used]
    return [claim(one, events) for one in found if name(one) not in known and phase_of(one) != "Bound"]


def phase_of(thing: dict) -> str:
    """Return a claim's phase."""
    return str(thing.get("status", {}).get("phase", "?"))
