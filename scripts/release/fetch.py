"""Copy files of a release's claim to this machine, through a short-lived pod that mounts the claim read-only.

scripts/fetch RELEASE PATH DESTINATION [-n NAMESPACE] [--claim results|data]
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from release import kube


def reader_pod(pod: str, claim: str, image: str) -> dict:
    """Return a pod that every Pod Security level admits and that only sleeps, with the claim at /claim."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "activeDeadlineSeconds": 3600,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "runAsGroup": 1000,
                "fsGroup": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "reader",
                    "image": image,
                    "command": ["sleep", "3600"],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [{"name": "claim", "mountPath": "/claim", "readOnly": True}],
                }
            ],
            "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}],
        },
    }


def image_of(release: str, namespace: str) -> str:
    """Return the image that the release's newest pod runs: it is on the nodes already."""
    pods = kube.items("pods", namespace, f"{kube.INSTANCE}={release}")
    if not pods:
        raise kube.KubeError(f"release {release} has no pod in namespace {namespace}: name an image with --image")
    return max(pods, key=lambda p: p["metadata"]["creationTimestamp"])["spec"]["containers"][0]["image"]


def fetch(namespace: str, claim: str, image: str, path: str, destination: Path) -> None:
    """Copy one folder of a claim. Raises KubeError when the pod does not start or the folder is not there."""
    pod = f"fetch-{claim}"[:63].rstrip("-")
    kube.kubectl("delete", "pod", pod, "-n", namespace, "--ignore-not-found", "--wait=true")
    kube.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(reader_pod(pod, claim, image)))
    try:
        kube.kubectl("wait", "-n", namespace, f"pod/{pod}", "--for=condition=Ready", "--timeout=120s", timeout=130)
        destination.mkdir(parents=True, exist_ok=True)
        with subprocess.Popen(
            [kube.program(), "exec", "-n", namespace, pod, "--", "tar", "-C", f"/claim/{path}", "-cf", "-", "."],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=kube.environment(),
        ) as sender:
            unpacked = subprocess.run(["tar", "-C", str(destination), "-xf", "-"], stdin=sender.stdout, check=False)
            _, error = sender.communicate()
        if sender.returncode or unpacked.returncode:
            raise kube.KubeError(f"{path} on claim {claim}: {error.decode().strip() or 'could not be unpacked here'}")
    finally:
        kube.kubectl("delete", "pod", pod, "-n", namespace, "--ignore-not-found", "--wait=false")


def main() -> int:
    """Copy what the command line names."""
    parser = argparse.ArgumentParser(prog="scripts/fetch", description=__doc__.splitlines()[0])
    parser.add_argument("release")
    parser.add_argument("path", help="folder on the claim, such as runs/demo-pytorchjob/published")
    parser.add_argument("destination", type=Path)
    parser.add_argument("-n", "--namespace", default="default")
    parser.add_argument("--claim", default="results", help="results or data, or the name of an existing claim")
    parser.add_argument("--image", default="", help="image with a shell's tar (default: that of the release's pods)")
    args = parser.parse_args()
    claim = f"{args.release}-{args.claim}" if args.claim in ("results", "data") else args.claim
    try:
        fetch(
            args.namespace,
            claim,
            args.image or image_of(args.release, args.namespace),
            args.path.strip("/"),
            args.destination,
        )
    except kube.KubeError as error:
        print(f"fetch: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
