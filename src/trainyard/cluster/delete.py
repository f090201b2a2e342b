"""Uninstall a release, and say what stays: the claims with its data and results. With the data only when said twice.

trainyard delete RELEASE [-n NAMESPACE] [--data --yes-delete-data]
"""

import argparse
import json
from functools import partial
from typing import Any

from trainyard.cluster import claims, helm, inventory, jobs, kube, parsing
from trainyard.cluster.errors import KubeError, RefusedError
from trainyard.cluster.parsing import WrongInputError

KIND = "persistentvolumeclaims"
LABELS = {"app.kubernetes.io/name": "storage", "app.kubernetes.io/part-of": "trainyard"}
PATIENCE = 300.0  # seconds that a claim may take to go; pods that use it end first
NOT_FOUND = "release: not found"  # in Helm's words


def own_claims(release: str, namespace: str) -> list[dict]:
    """Return the claims that a release has made; what Helm has not made for it is another's."""
    found = kube.items(KIND, namespace, kube.selector({inventory.INSTANCE: release} | LABELS))
    return [one for one in found if made_by(one, release, namespace)]


def made_by(claim: dict, release: str, namespace: str) -> bool:
    """Whether Helm has made a claim for this release."""
    notes = claim["metadata"].get("annotations", {})
    return bool(notes.get(claims.OWNER) == release and notes.get(claims.OWNER_NAMESPACE) == namespace)


def size(claim: dict) -> str:
    """Return the size of a claim's volume, or what it asks for while it has none."""
    asked = claim["spec"].get("resources", {}).get("requests", {})
    return str(claim.get("status", {}).get("capacity", asked).get("storage", "?"))


def users(names: set[str], release: str, namespace: str) -> list[str]:
    """Say which pods of others mount one of these claims: what finished pods have written lies there, too.

    A pod that is being deleted is no reason where nothing replaces it: the claim stays until it has ended. A job that
    trains makes a new one, as after an eviction.
    """
    found = []
    for pod in kube.items("pods", namespace):
        replaced = any(one.get("controller") for one in pod["metadata"].get("ownerReferences", []))
        if pod["metadata"].get("deletionTimestamp") and not replaced:
            continue
        owner = pod["metadata"].get("labels", {}).get(inventory.INSTANCE, "")
        if owner != release and (shared := sorted(names & jobs.mounted_claims(pod["spec"]))):
            of = f" of release {owner}" if owner else ""
            found.append(f"pod {pod['metadata']['name']}{of} uses {', '.join(shared)}")
    return found


def refuse(args: argparse.Namespace, own: list[dict]) -> None:
    """Raise WrongInputError where data would go that somebody uses, or that only one of the two options names."""
    if args.yes_delete_data and not args.data:
        raise WrongInputError("--yes-delete-data confirms --data, which is missing: write both, or neither")
    if not args.data:
        return
    if not own:
        raise WrongInputError(f"--data: release {args.release} has made no claim here: leave it out; nothing was done")
    if not args.yes_delete_data:
        lost = ", ".join(f"{one['metadata']['name']} ({size(one)})" for one in own)
        raise WrongInputError(f"--data would delete {lost}: add --yes-delete-data to confirm; nothing was done")
    if used := users({one["metadata"]["name"] for one in own}, args.release, args.namespace):
        raise WrongInputError(f"--data: {'; '.join(used)}: delete that first, or leave --data out; nothing was done")


def uninstall(release: str, namespace: str, may_be_gone: bool, quiet: bool) -> int:
    """Let Helm uninstall a release; return its exit code, or 0 for one that is gone and may be."""
    done = helm.run("uninstall", release, "-n", namespace, quiet=quiet)
    return 0 if may_be_gone and NOT_FOUND in done.stderr else done.returncode


def delete_claims(own: list[dict], namespace: str) -> list[str]:
    """Delete claims and wait until they are gone; return those that are there still.

    Raises KubeError, when the others have gone, for one whose name another claim has by now: that one stays.
    """
    anew: list[RefusedError] = []
    for claim in own:
        try:
            kube.delete(KIND, namespace, claim, LABELS)
        except RefusedError as error:
            if error.status != 409:
                raise
            anew.append(error)
    slow = [name for name, uid in ((one["metadata"]["name"], one["metadata"]["uid"]) for one in own)
            if not kube.until(KIND, namespace, name, partial(has_gone, uid), PATIENCE)[0]]  # fmt: skip
    if anew:
        raise KubeError("; ".join(map(str, anew)))
    return slow


def has_gone(uid: str, claim: dict | None) -> bool:
    """Whether a claim is not there any more, though another may have its name."""
    return claim is None or claim["metadata"]["uid"] != uid


def delete(args: argparse.Namespace) -> int:
    """Uninstall what the command line names, and tell what stays and what has gone."""
    own = own_claims(args.release, args.namespace)
    refuse(args, own)
    # With --data, of a release that was uninstalled before, too
    if code := uninstall(args.release, args.namespace, may_be_gone=args.data, quiet=args.json):
        return code
    slow = delete_claims(own, args.namespace) if args.data else []
    tell(args, own, slow)
    return 1 if slow else 0


def tell(args: argparse.Namespace, own: list[dict], slow: list[str]) -> None:
    """Print which claims stay and which have gone."""
    listed = [{"name": one["metadata"]["name"], "size": size(one)} for one in own]
    if args.json:
        told: dict[str, Any] = {"release": args.release, "namespace": args.namespace}
        kept, gone = ([], listed) if args.data else (listed, [])
        print(json.dumps(told | {"kept": kept, "deleted": gone, "terminating": slow}, indent=2))
        return
    for one in listed:
        going = "is being deleted; pods that use it still run" if one["name"] in slow else "deleted"
        print(f"claim {one['name']} ({one['size']}): {going if args.data else 'kept'}")
    if own and not args.data:
        print(f"to delete them too: trainyard delete {args.release} -n {args.namespace} --data --yes-delete-data")


def parser() -> argparse.ArgumentParser:
    """Return the parser of `trainyard delete`."""
    own = parsing.command(
        "delete",
        "Uninstall a release. Its claims, with data and results, stay unless two options say otherwise.",
        """
        trainyard delete run -n vision
        trainyard delete run -n vision --data --yes-delete-data
        """,
        {
            0: "the release is uninstalled, and what was to be deleted is gone",
            1: "Helm has no such release or could not uninstall it, or a claim is still being deleted",
        },
        "A claim that the release did not make (existingClaim), or that pods of others use, is never deleted.",
    )
    own.add_argument("release")
    parsing.add_namespace(own)
    own.add_argument("--data", action="store_true", help="delete the claims that the release made, with all they hold")
    own.add_argument("--yes-delete-data", action="store_true", help="confirm --data")
    own.add_argument("--json", action="store_true", help="print what was kept and deleted as JSON")
    return own


def main(arguments: list[str] | None = None) -> int:
    """Delete the release that the command line names."""
    args = parser().parse_args(arguments)
    return parsing.run_command("delete", lambda: delete(args))
