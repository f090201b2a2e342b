"""Copy a folder of this machine onto a release's claim, through a short-lived pod.

trainyard send RELEASE FOLDER PATH [-n NAMESPACE] [--claim data|results]

The folder appears on the claim whole or not at all: who waits for it never sees a part.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path
from typing import IO, cast

from trainyard.cluster import kube, parsing
from trainyard.cluster.errors import KubeError
from trainyard.cluster.fetch import ClaimSource, add_options, idle_pod, named_by, pod_name, start

# The last file of the tar: without it a copy was cut off, which tar itself does not notice between two files
LAST = ".sent-whole"
# $0 is where the folder shall be, $1 a name that no other copy has
RECEIVE = f"""set -eu
parent=$(dirname "$0") part=$0.part-$1
if [ -e "$0" ]; then echo "it is there already: name another path, or delete it" >&2; exit 1; fi
mkdir -p "$parent"
trap 'rm -rf "$part"' EXIT
mkdir "$part"
tar -C "$part" --no-same-owner -xf -
rm "$part/{LAST}" || {{ echo "the copy was cut off: run the same command again" >&2; exit 1; }}
sync
mv -T "$part" "$0"
"""


def send(namespace: str, what: ClaimSource, folder: Path, path: str) -> None:
    """Copy a folder. Raises KubeError when there is none, the pod does not start, or the claim has such a path."""
    if not folder.is_dir():
        raise KubeError(f"{folder} is no folder")
    pod = pod_name(what.claim, "send")
    place = "/".join(part for part in ("/claim", what.folder, path) if part)
    command, environment = kube.exec_command(pod, namespace, "sh", "-c", RECEIVE, place, pod, stdin=True)
    try:
        start(namespace, idle_pod(pod, what, writes=True))
        if error := pack(folder, command, environment):
            raise KubeError(f"{path} on claim {what.claim}: {error}")
    finally:
        kube.delete("pods", namespace, pod)


def pack(folder: Path, command: list[str], environment: dict[str, str]) -> str:
    """Send a folder as a tar to a command; returns what went wrong, if anything.

    Modes let everybody read: the pods that will are other users.
    """
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory() as own:
        (Path(own) / LAST).touch()
        here = ["tar", "--mode=u+rwX,go+rX", "-cf", "-", "-C", str(folder.absolute()), ".", "-C", own, LAST]
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
        "Copy a folder of this machine onto a release's claim, through a short-lived pod.",
        """
        trainyard send run pictures raw/pictures -n vision
        """,
        {0: "the folder is on the claim"},
        "The folder appears on the claim whole or not at all: who waits for it never sees a part.",
    )
    own.add_argument("release")
    own.add_argument("folder", type=Path, help="folder of this machine")
    own.add_argument("path", help="where it shall be on the claim, such as raw/pictures")
    add_options(own, "data")
    return own


def main(arguments: list[str] | None = None) -> int:
    """Copy what the command line names."""
    args = parser().parse_args(arguments)

    def run() -> int:
        send(args.namespace, named_by(args), args.folder, args.path.strip("/"))
        return 0

    return parsing.ended("send", run)
