"""Copy a file or folder of this machine onto a release's claim, through a short-lived pod.

trainyard send RELEASE SOURCE PATH [-n NAMESPACE] [--claim data|results]

It appears on the claim whole or not at all: a job that waits for it never sees a part.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path
from typing import IO, cast

from trainyard.cluster import kube, parsing
from trainyard.cluster.claim_source import ClaimSource, add_options, named_by
from trainyard.cluster.errors import KubeError
from trainyard.cluster.fetch import idle_pod, pod_name, running

# The last file of the tar: without it a copy was cut off, which tar itself does not notice between two files
LAST = ".sent-whole"
# $0 is where it shall be, $1 a name that no other copy has, $2 a file's name in the tar; nothing for a folder
RECEIVE = f"""set -eu
parent=$(dirname "$0") part=$0.part-$1
if [ -e "$0" ]; then echo "it is there already: name another path, or delete it" >&2; exit 1; fi
mkdir -p "$parent"
trap 'rm -rf "$part"' EXIT
mkdir "$part"
tar -C "$part" --no-same-owner -xf -
rm "$part/{LAST}" || {{ echo "the copy was cut off: run the same command again" >&2; exit 1; }}
sync
mv -T "$part${{2:+/$2}}" "$0"
"""


def send(namespace: str, what: ClaimSource, given: Path, path: str) -> None:
    """Copy a file or a folder, of which `path` is the name on the claim.

    Raises KubeError when there is none, the pod does not start, or the claim has such a path.
    """
    if not (given.is_dir() or given.is_file()):
        raise KubeError(f"{given} is {'neither a file nor a folder' if given.exists() else 'not there'}")
    pod = pod_name(what.claim, "send")
    place = "/".join(part for part in ("/claim", what.folder, path) if part)
    command, environment = kube.exec_command(pod, namespace, *receiving(given, place, pod), stdin=True)
    with running(namespace, idle_pod(pod, what, writes=True)):
        if error := pack(given, command, environment):
            raise KubeError(f"{path} on claim {what.claim}: {error}")


def receiving(given: Path, place: str, own: str) -> list[str]:
    """Return what a pod runs to receive a file or folder at a place; no other copy has the name `own`."""
    return ["sh", "-c", RECEIVE, place, own, *([given.resolve().name] if given.is_file() else [])]


def pack(given: Path, command: list[str], environment: dict[str, str]) -> str:
    """Send a file or folder as a tar to a command; returns what went wrong, if anything.

    Modes let everybody read: the pods that will are other users.
    """
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory() as own:
        (Path(own) / LAST).touch()
        whole = given.resolve()
        folder, name = (whole.parent, f"./{whole.name}") if given.is_file() else (whole, ".")
        here = ["tar", "--mode=u+rwX,go+rX", "-cf", "-", "-C", str(folder), name, "-C", own, LAST]
        with subprocess.Popen(here, stdout=subprocess.PIPE, stderr=errors) as packer:
            sent = cast(IO[bytes], packer.stdout)  # it is PIPE
            received = subprocess.run(command, stdin=sent, stderr=errors, env=environment, check=False)
            sent.close()  # the packer ends when nobody listens
        errors.seek(0)
        said = errors.read()[-4000:].decode(errors="replace").strip()
    return (said or "could not be copied") if received.returncode or packer.returncode else ""


def parser() -> argparse.ArgumentParser:
    """Return the parser of `trainyard send`."""
    own = parsing.command(
        "send",
        "Copy a file or folder of this machine onto a release's claim, through a short-lived pod.",
        """
        trainyard send run photos raw/photos -n vision
        trainyard send run imagenet.zip raw/imagenet.zip -n vision
        """,
        {0: "the file or folder is on the claim"},
        "It appears on the claim whole or not at all: a job that waits for it never sees a part.",
    )
    own.add_argument("release")
    own.add_argument("source", type=Path, help="file or folder of this machine")
    own.add_argument("path", help="its name on the claim, such as raw/photos or raw/imagenet.zip")
    add_options(own, "data")
    return own


def main(arguments: list[str] | None = None) -> int:
    """Copy what the command line names."""
    args = parser().parse_args(arguments)

    def run() -> int:
        send(args.namespace, named_by(args), args.source, args.path.strip("/"))
        return 0

    return parsing.run_command("send", run)
