"""Copy files of a release's claim to this machine, through a short-lived pod that mounts the claim read-only.

trainyard fetch RELEASE PATH DESTINATION [-n NAMESPACE] [--claim results|data]

Where the connection to the cluster breaks, or the copy is cut off, it begins again; five tries in all.
"""

import argparse
import re
import secrets
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, NamedTuple, cast

from trainyard.cluster import inventory, kube, parsing, why
from trainyard.cluster.errors import KubeError
from trainyard.core.exits import printable


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
TRIES = 5
PAUSE = 1.0  # seconds before the second try; doubled for each further one
# What kubectl says of a connection that broke: of its WebSocket, of SPDY before Kubernetes 1.31, of TCP
BROKEN = re.compile(
    r"unexpected EOF|websocket: close|connection reset|connection lost|use of closed network|GOAWAY|INTERNAL_ERROR|"
    r"i/o timeout|TLS handshake timeout|connection refused"
)
# What follows a whole tar: `kubectl exec` may lose the end of what a command prints, and exit with 0 all the same
# (kubernetes/kubernetes#124571), which the tar here does not notice between two files
WHOLE = b"trainyard:whole"
CUT_OFF = "the copy was cut off: unexpected EOF"
SEND = f"""tar -C "$0" -cf - . && printf {WHOLE.decode()}"""  # $0 is the folder


def rank(pod: dict) -> tuple[bool, str]:
    """Order pods by how well they tell what to read with: the file browser's image may be anybody's and lack tar."""
    meta = pod["metadata"]
    return meta.get("labels", {}).get("app.kubernetes.io/name") != "filebrowser", meta["creationTimestamp"]


def source(release: str, which: str, pods: list[dict], image: str = "") -> ClaimSource:
    """Read from the release's newest pod where `data` or `results` lie; a claim may be named itself, too."""
    named = which not in ("results", "data")
    for pod in sorted(pods, key=rank, reverse=True):
        spec = pod["spec"]
        claims = {
            v["name"]: v["persistentVolumeClaim"]["claimName"] for v in spec["volumes"] if "persistentVolumeClaim" in v
        }
        container = spec["containers"][0]
        mounts = {mount["name"]: mount.get("subPath", "") for mount in container["volumeMounts"]}
        if named or (which in claims and which in mounts):
            claim, folder = (which, "") if named else (claims[which], mounts[which])
            return ClaimSource(
                claim, folder, image or container["image"], {key: spec[key] for key in LIKE if key in spec}
            )
    if not image:
        raise KubeError(f"release {release} has no pod that tells which image to use: name one with --image")
    return ClaimSource(which if named else f"{release}-{which}", "", image, PLAIN)


def idle_pod(pod: str, what: ClaimSource, *, writes: bool = False) -> dict:
    """Return a pod that every Pod Security level admits and that only sleeps, with the claim at /claim."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod, "labels": {"sidecar.istio.io/inject": "false"}},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "activeDeadlineSeconds": 3600,
            **what.like,
            "containers": [
                {
                    "name": "files",
                    "image": what.image,
                    "command": ["sleep", "3600"],
                    "resources": {
                        "requests": {"cpu": "50m", "memory": "64Mi"},
                        "limits": {"cpu": "1", "memory": "256Mi"},
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [{"name": "claim", "mountPath": "/claim", "readOnly": not writes}],
                }
            ],
            "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": what.claim, "readOnly": not writes}}],
        },
    }


def ready(pod: dict | None) -> bool:
    """Whether a pod is ready, or never will be."""
    status = (pod or {}).get("status", {})
    held = {one["type"] for one in status.get("conditions", []) if one["status"] == "True"}
    return "Ready" in held or status.get("phase") in ("Failed", "Succeeded")


def start(namespace: str, pod: dict) -> None:
    """Create a pod and wait until it is ready; raises KubeError with what it waits for when that takes too long."""
    name = pod["metadata"]["name"]
    kube.create("pods", namespace, pod)
    fits, state = kube.until("pods", namespace, name, ready, 120)
    phase = (state or {}).get("status", {}).get("phase", "gone")
    if not fits or phase != "Running":
        events = kube.items("events", namespace)
        found = why.pod(state, events, namespace, datetime.now(UTC), look=False) if state else []
        causes = [one.cause for one in found if one.cause]
        raise KubeError(f"pod/{name} is {phase}, not ready: {'; '.join(causes) or 'see kubectl describe pod'}")


def pod_name(claim: str, what: str = "fetch") -> str:
    """Return a name that no other fetch has, also not one of the same claim by someone else."""
    return f"{what}-{claim[:48].rstrip('-.')}-{secrets.token_hex(4)}"


def pass_on(stream: IO[bytes], receiver: IO[bytes]) -> str:
    """Pass a stream on to a receiver, without the mark at its end; returns an error where the mark is not there."""
    held = b""
    try:
        with receiver:
            while piece := stream.read(1 << 20):
                held += piece
                receiver.write(held[: -len(WHOLE)])
                held = held[-len(WHOLE) :]
    except BrokenPipeError:
        return ""  # the receiver has ended, and its exit code says why
    return "" if held == WHOLE else CUT_OFF


def unpack(command: list[str], environment: dict[str, str], destination: Path) -> str:
    """Unpack the tar that a command sends as SEND does; returns what went wrong, if anything.

    As root, too, files get this user as their owner and the usual modes: those on the claim are the pods'.
    """
    here = ["tar", "-C", str(destination), "--no-same-owner", "--no-same-permissions", "-xf", "-"]
    with tempfile.TemporaryFile() as errors:  # a pipe that nobody reads would fill, and stop the sender
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment) as sender,
            subprocess.Popen(here, stdin=subprocess.PIPE) as unpacker,
        ):
            sent, received = cast(IO[bytes], sender.stdout), cast(IO[bytes], unpacker.stdin)  # both are PIPE
            cut = pass_on(sent, received)
        errors.seek(0)
        said = errors.read()[-4000:].decode(errors="replace").strip()
    if sender.returncode and said:
        return said
    return cut or ("could not be unpacked here" if sender.returncode or unpacker.returncode else "")


def copy(command: list[str], environment: dict[str, str], destination: Path) -> str:
    """Unpack the tar that a command sends as SEND does; returns what went wrong, if anything.

    A connection that breaks, as it does with large copies (kubernetes/kubernetes#60140), is made again, TRIES times in
    all, and the copy begins again.
    """
    for attempt in range(1, TRIES + 1):
        error = unpack(command, environment, destination)
        if not BROKEN.search(error) or attempt == TRIES:
            break
        said = printable(f"fetch: the connection broke, copying again ({attempt} of {TRIES}): {error.splitlines()[-1]}")
        print(said, file=sys.stderr, flush=True)
        time.sleep(2 ** (attempt - 1) * PAUSE)
    return error


def fetch(namespace: str, what: ClaimSource, path: str, destination: Path, send: str = SEND) -> None:
    """Copy one folder of a claim, or what of it the script `send` sends.

    Raises KubeError when the pod does not start or the folder is not there.
    """
    pod = pod_name(what.claim)
    place = "/".join(part for part in ("/claim", what.folder, path) if part)
    command, environment = kube.exec_command(pod, namespace, "sh", "-c", send, place)
    try:
        start(namespace, idle_pod(pod, what))
        destination.mkdir(parents=True, exist_ok=True)
        if error := copy(command, environment, destination):
            raise KubeError(f"{path} on claim {what.claim}: {error}")
    finally:
        kube.delete("pods", namespace, pod)


def add_options(parser: argparse.ArgumentParser, claim: str) -> None:
    """Give a command the options that say which claim is meant, and with which image."""
    parsing.add_namespace(parser)
    parser.add_argument("--claim", default=claim, help=f"results, data, or a claim's own name (default: {claim})")
    parser.add_argument("--image", default="", help="image with a shell's tar (default: that of the release's pods)")


def named_by(args: argparse.Namespace) -> ClaimSource:
    """Return the claim that a command's options name; raises KubeError."""
    pods = kube.items("pods", args.namespace, f"{inventory.INSTANCE}={args.release}")
    return source(args.release, args.claim, pods, args.image)


def parser() -> argparse.ArgumentParser:
    """Return the parser of `trainyard fetch`."""
    own = parsing.command(
        "fetch",
        "Copy files of a release's claim to this machine, through a short-lived pod that mounts the claim read-only.",
        """
        trainyard fetch run runs/run/published model -n vision
        trainyard fetch run prepared . -n vision --claim data
        """,
        {0: "the files are here"},
        "Where the connection to the cluster breaks, or the copy is cut off, it begins again; five tries in all.",
    )
    own.add_argument("release")
    own.add_argument("path", help="folder on the claim, such as runs/demo-pytorchjob/published")
    own.add_argument("destination", type=Path)
    add_options(own, "results")
    return own


def main(arguments: list[str] | None = None) -> int:
    """Copy what the command line names."""
    args = parser().parse_args(arguments)

    def run() -> int:
        fetch(args.namespace, named_by(args), args.path.strip("/"), args.destination)
        return 0

    return parsing.ended("fetch", run)
