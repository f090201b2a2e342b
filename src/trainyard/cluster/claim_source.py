"""Find out how a pod gets at the files of a claim: with the folder, user and image of a release's own pods."""

import argparse
import contextlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from trainyard.cluster import inventory, jobs, kube, parsing, published, trainjobs
from trainyard.cluster.errors import KubeError, RefusedError


class ClaimSource(NamedTuple):
    """Where files lie, and how a pod gets at them: as the release's own pods do."""

    claim: str
    folder: str  # of the claim, which the release's pods take for all of it
    image: str
    like: dict  # the parts of a pod's spec that decide who it is and where it may run


PLAIN = {
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
}
LIKE = ("securityContext", "imagePullSecrets", "nodeSelector", "tolerations", "serviceAccountName")
NAMES = ("results", "data")
FILEBROWSER = "filebrowser"  # its image may be anybody's, and lack tar


def part(pod: dict) -> str:
    """Return the part of the chart that a pod belongs to, such as pytorchjob or filebrowser."""
    return str(pod["metadata"].get("labels", {}).get(jobs.PART, ""))


def rank_pods(pods: Iterable[dict]) -> list[dict]:
    """Order pods by how well they tell what to read with: the file browser's last, the newest first."""
    return sorted(
        pods, key=lambda pod: (part(pod) != FILEBROWSER, pod["metadata"].get("creationTimestamp") or ""), reverse=True
    )


def mounts(pod: dict, which: str) -> tuple[str, str] | None:
    """Return the claim that a pod mounts as `data` or `results`, and the folder of it; None where it mounts none.

    Of a claim that is named itself all is taken, whether the pod mounts it or not.
    """
    if which not in NAMES:
        return which, ""
    spec = pod["spec"]
    held = {
        one["name"]: one["persistentVolumeClaim"] for one in spec.get("volumes", []) if "persistentVolumeClaim" in one
    }
    mounted = {one["name"]: one.get("subPath", "") for one in spec["containers"][0].get("volumeMounts", [])}
    return (held[which]["claimName"], mounted[which]) if which in held and which in mounted else None


def source(release: str, which: str, own: Iterable[dict], image: str = "", others: Iterable[dict] = ()) -> ClaimSource:
    """Return how to read a release's `data` or `results`, or a claim that is named itself.

    `own` are pods of the release, or what its jobs make pods from; `others` pods of other releases beside it. Raises
    KubeError where nothing tells which image to use.
    """
    own = rank_pods(own)
    place, mounted = next(((pod, mount) for pod in own if (mount := mounts(pod, which))), (None, None))
    tellers = [*([place] if place else []), *own, *rank_pods(others)]
    teller = next((pod for pod in tellers if part(pod) != FILEBROWSER), None)
    found = image or image_of(teller) or published.image() or image_of(place)
    if not found:
        raise KubeError(
            f"neither release {release} nor another one in its namespace has a pod or a job that tells which image to "
            "use: name one that has sh and tar with --image, such as REGISTRY/trainyard-pytorch:TAG"
        )
    if place and mounted:
        return ClaimSource(*mounted, found, {key: place["spec"][key] for key in LIKE if key in place["spec"]})
    secrets = teller["spec"].get("imagePullSecrets") if teller else None
    like = PLAIN | ({"imagePullSecrets": secrets} if secrets else {})
    return ClaimSource(f"{release}-{which}" if which in NAMES else which, "", found, like)


def image_of(pod: dict | None) -> str:
    """Return the image of a pod's first container; empty for no pod."""
    return str(pod["spec"]["containers"][0]["image"]) if pod else ""


def templates(release: str, namespace: str) -> Iterator[dict]:
    """Yield what the jobs of a release make their pods from, as pods: it is there after these have gone."""
    for kind in ("pytorchjobs.kubeflow.org", "mpijobs.kubeflow.org", trainjobs.RUNTIMES, "jobs.batch"):
        with contextlib.suppress(KubeError):  # a kind that this user may not list tells nothing
            for job in kube.items(kind, namespace, f"{inventory.INSTANCE}={release}"):
                for spec in pod_specs(kind, job):
                    yield {"metadata": job["metadata"], "spec": spec}


def pod_specs(kind: str, job: dict) -> list[dict]:
    """Return the specs of the pods of a job, or of a TrainJob's runtime."""
    if kind == trainjobs.RUNTIMES:
        replicated = job["spec"]["template"]["spec"]["replicatedJobs"]
        return [one["template"]["spec"]["template"]["spec"] for one in replicated]
    spec = jobs.pod_spec(job, [])
    return [spec] if spec else []


def named_by(args: argparse.Namespace) -> ClaimSource:
    """Return the claim that a command's options name; raises KubeError."""
    own = kube.items("pods", args.namespace, f"{inventory.INSTANCE}={args.release}")
    if not any(part(pod) != FILEBROWSER and mounts(pod, args.claim) for pod in own):
        own += templates(args.release, args.namespace)
    others: list[dict] = []
    if not args.image and all(part(pod) == FILEBROWSER for pod in own):
        others = kube.items("pods", args.namespace, jobs.PART_OF)
    found = source(args.release, args.claim, own, args.image, others)
    if args.claim not in NAMES or not any(mounts(pod, args.claim) for pod in own):  # no pod tells that it is there
        refuse_missing(found.claim, args.namespace)
    return found


def refuse_missing(claim: str, namespace: str) -> None:
    """Raise KubeError where a namespace has no such claim; a user who may not list claims is not refused for it."""
    try:
        there = kube.items("persistentvolumeclaims", namespace, fields=f"metadata.name={claim}")
    except RefusedError:
        return
    if not there:
        raise KubeError(
            f"namespace {namespace} has no claim {claim}: name the claim with --claim (kubectl get pvc lists them), "
            "or the namespace with -n"
        )


def add_options(parser: argparse.ArgumentParser, claim: str) -> None:
    """Give a command the options that say which claim is meant, and with which image."""
    parsing.add_namespace(parser)
    parser.add_argument("--claim", default=claim, help=f"results, data, or a claim's own name (default: {claim})")
    parser.add_argument(
        "--image",
        default="",
        help="image with sh and tar (default: that of the release's pods or jobs, of others in "
        "the namespace, or the published one)",
    )
