"""Copy files of a release's claim to this machine, through a short-lived pod that mounts the claim read-only.

trainyard fetch RELEASE PATH DESTINATION [-n NAMESPACE] [--claim results|data]

Where the connection to the cluster breaks, or the copy is cut off, it begins again; five tries in all.
"""

import argparse
import contextlib
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, cast

from trainyard.cluster import kube, parsing, why
from trainyard.cluster.claim_source import ClaimSource, add_options, named_by
from trainyard.cluster.errors import KubeError, RefusedError
from trainyard.core.exits import printable

TRIES = 5
PAUSE = 1.0  # seconds before the second try; doubled for each further one
STARTING = (30.0, 570.0)  # seconds until it is said what a pod waits for, and more until it is given up: it may pull
# What kubectl says of a connection that broke: of its WebSocket, of SPDY before Kubernetes 1.31, of TCP
BROKEN = re.compile(
    r"unexpected EOF|websocket: close|connection reset|connection lost|use of closed network|GOAWAY|INTERNAL_ERROR|"
    r"i/o timeout|TLS handshake timeout|connection refused"
)
# What follows a whole tar: `kubectl exec` may lose the end of what a command prints, and exit with 0 all the same
# (kubernetes/kubernetes#124571), which the tar here does not notice between two files
WHOLE = b"trainyard:whole"
CUT_OFF = "the copy was cut off: unexpected EOF"
# tar ends with 1 where files changed under it: what that means is said here (lost_of)
SENT = f"""code=$?; [ $code -gt 1 ] || printf {WHOLE.decode()}; exit $code"""
SEND = f"""LC_ALL=C tar -C "$0" -cf - .; {SENT}"""  # $0 is the folder
# GNU tar's words for a file that grew or was written anew, and for one that it could not read as a whole
CHANGED = re.compile(r"tar: (.+): file changed as we read it")
LOST = re.compile(r"tar: (.+): File (?:removed before we read it|shrank by \d+ bytes?; padding with zeros)")
# What a run removes when it is written: files that take another name (core/files.py), and checkpoints in the making
PASSING = re.compile(r"(^|/)leases/|/\.[^/]+\.tmp$")
# And kubectl's own, the second of a pod that got a further container, as by a service mesh
KUBECTL = re.compile(r"command terminated with exit code 1|Defaulted container .*")
# The pod ends when it has had no process but its own for so many looks in a row: a copy may take days, and a pod whose
# command has died stays for minutes. $0 is the looks, $1 the seconds between two
STAY = """idle=0
while [ $idle -lt "$0" ]; do
  sleep "$1"
  idle=$((idle + 1))
  for process in /proc/[0-9]*; do
    case $process in /proc/1|/proc/$$) ;; *) idle=0 ;; esac
  done
done"""
LOOKS, SECONDS = 10, 60
MARK = {"app.kubernetes.io/managed-by": "trainyard-copy"}
MOST_SECONDS = 7 * 86400  # the pod's own end where a process of a copy hangs for ever


def idle_pod(pod: str, what: ClaimSource, *, writes: bool = False) -> dict:
    """Return a pod that every Pod Security level admits and that only waits for copies, with the claim at /claim."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod, "labels": MARK | {"sidecar.istio.io/inject": "false"}},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "activeDeadlineSeconds": MOST_SECONDS,
            **what.like,
            "containers": [
                {
                    "name": "files",
                    "image": what.image,
                    "command": ["sh", "-c", STAY, str(LOOKS), str(SECONDS)],
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


@contextlib.contextmanager
def running(namespace: str, pod: dict) -> Iterator[None]:
    """Run a pod until the block ends, and delete it, and no other of its name; raises KubeError as `start` does."""
    made: list[dict] | None = None
    try:
        try:
            made = [kube.create("pods", namespace, pod)]
        except RefusedError:
            made = []  # what may have this name is another's
            raise
        start(namespace, made[0])
        yield
    finally:
        if made is None:  # without an answer it may be there all the same
            made = kube.items("pods", namespace, kube.selector(MARK), f"metadata.name={pod['metadata']['name']}")
        for one in made:
            kube.delete("pods", namespace, one, MARK)


def start(namespace: str, pod: dict) -> None:
    """Wait until a new pod is ready; raises KubeError with what it waits for when that takes too long."""
    name = pod["metadata"]["name"]
    for number, seconds in enumerate(STARTING):
        fits, state = kube.until("pods", namespace, name, ready, seconds)
        if fits and phase(state) == "Running":
            return
        said = f"pod/{name} is {phase(state)}, not ready: {causes(state, namespace) or 'see kubectl describe pod'}"
        if fits or state is None or number == len(STARTING) - 1:
            raise KubeError(said)
        print(printable(f"waiting: {said}"), file=sys.stderr, flush=True)


def phase(pod: dict | None) -> str:
    """Return a pod's phase; `gone` where it is not there."""
    return str((pod or {}).get("status", {}).get("phase", "gone"))


def causes(pod: dict | None, namespace: str) -> str:
    """Say what a pod waits for or failed on; empty where nothing is known."""
    events: list[dict] = []
    with contextlib.suppress(KubeError):  # a user who may not list events may copy all the same
        events = kube.items("events", namespace)
    found = why.explain_pod(pod, events, namespace, datetime.now(UTC), look=False) if pod else []
    return "; ".join(one.cause for one in found if one.cause)


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
        said = errors.read().decode(errors="replace").strip()
    if sender.returncode == 1 and not cut and not unpacker.returncode:
        return lost_of(said)
    if sender.returncode and said:
        return said[-4000:]
    return cut or ("could not be unpacked here" if sender.returncode or unpacker.returncode else "")


def lost_of(said: str) -> str:
    """Return what a whole copy lacks whose tar ended with 1, in one sentence; nothing where files have only grown.

    A file is copied up to the length that it had when tar opened it, so that of one that is appended to the beginning
    is here. Which ones is noted on stderr.
    """
    lines = [line for line in said.splitlines() if line and not KUBECTL.fullmatch(line)]
    changed, lost = ([found[1] for line in lines if (found := one.fullmatch(line))] for one in (CHANGED, LOST))
    if not lines or len(changed) + len(lost) < len(lines):
        return said[-4000:] or "could not be copied"
    if missing := [name for name in lost if not PASSING.search(name)]:
        return (
            f"removed or cut while it was copied: {format_names(missing)}. A run that trains removes its older "
            "checkpoints: copy again to another folder, or less, such as published or the newest of checkpoints"
        )
    if changed:
        names = format_names(changed)
        print(
            printable(f"fetch: changed during the copy, and is here as it was when it was read: {names}"),
            file=sys.stderr,
        )
    return ""


def format_names(names: list[str]) -> str:
    """Return the first names of a list of files, and how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(name.removeprefix("./") for name in names[:5]) + more


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
    with running(namespace, idle_pod(pod, what)):
        destination.mkdir(parents=True, exist_ok=True)
        if error := copy(command, environment, destination):
            raise KubeError(f"{path} on claim {what.claim}: {error}")


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

    return parsing.run_command("fetch", run)
