"""Write a values file for a PyTorchJob, an MPIJob or a TrainJob of another's, and name what it cannot carry.

trainyard convert FILE|-|KIND/NAME [-n NAMESPACE] [-o FILE] [--image IMAGE] [--command WORDS]
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.cluster import parsing
from trainyard.cluster.conversion import job_kinds, source, written
from trainyard.cluster.conversion.common import IMAGE, Asked
from trainyard.cluster.conversion.ledger import Ledger, Node, Note, shown, text, unread
from trainyard.cluster.parsing import WrongInputError
from trainyard.core.exits import printable

UNKNOWN = "the chart has no key for it"


class Converted(NamedTuple):
    """Values, what they do not carry, and what the chart does in another way."""

    name: str  # of the job, with its kind
    values: dict[str, Any]
    lost: list[Note]
    changed: list[Note]


def convert(found: source.FoundJob, asked: Asked) -> Converted:
    """Convert a manifest; raises WrongInputError for one that cannot become a job of the chart."""
    ledger = Ledger()
    job = Node(found.job, (), ledger)
    runtime = None
    if found.runtime is not None:
        name = f"{found.runtime['kind']} {found.runtime['metadata']['name']}: "
        runtime = Node(found.runtime, (name,), ledger)
    kind = next(one for one in job_kinds.CONVERT if one.lower() == str(found.job["kind"]).lower())
    try:
        values = job_kinds.CONVERT[kind](job_kinds.ManifestJob(job, runtime), asked)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise WrongInputError(f"the manifest is no {kind} as its operator takes it ({error!r})") from error
    for node in (job, runtime):
        for one in unread(node) if node else ():
            ledger.lost.append(Note(text(one.path), shown(one.value), UNKNOWN))
    label = found.job.get("metadata", {}).get("name") or found.job.get("metadata", {}).get("generateName", "")
    return Converted(f"{kind} {label}".strip(), values, distinct(ledger.lost), distinct(ledger.changed))


def distinct(notes: list[Note]) -> list[Note]:
    """Return each note once; one about Master and Worker alike has both."""
    both = {
        one
        for one in notes
        if one._replace(path=one.path.replace(".Worker", ".Master")) in notes and ".Worker" in one.path
    }
    masters = {one._replace(path=one.path.replace(".Worker", ".Master")) for one in both}
    kept = [one for one in dict.fromkeys(notes) if one not in masters]
    return [one._replace(path=one.path.replace(".Worker", ".{Master,Worker}")) if one in both else one for one in kept]


def format_account(done: Converted) -> str:
    """Return the account for people."""
    lines = []
    for title, notes in (("not carried", done.lost), ("done in another way", done.changed)):
        if notes:
            lines.append(f"{title}:")
        for note in notes:
            lines += [f"  {note.path}" + (f": {note.value}" if note.value else ""), f"    {note.why}"]
    if not done.lost:
        lines.append(f"all of {done.name} is carried")
    return printable("\n".join(lines))


def run(args: argparse.Namespace) -> int:
    """Convert what the command line names, and write it."""
    to_stdout = str(args.output) == "-"
    if not to_stdout and args.output.exists() and not args.force:
        raise WrongInputError(
            f"{args.output} is there already: add --force to overwrite it, or name another file by -o"
        )
    if args.image and not IMAGE.match(args.image):
        raise WrongInputError(f"--image {args.image}: write REGISTRY/NAME:TAG, or a digest in place of the tag")
    asked = Asked(args.image, tuple(shlex.split(args.command)))
    done = convert(source.read(args.source, args.namespace), asked)
    content = written.text(done.values, done.name, done.lost, done.changed)
    try:
        if not to_stdout:
            args.output.write_text(content)
    except OSError as error:
        raise WrongInputError(f"-o {args.output}: {error.strerror}: name a file in a folder that is there") from None
    if args.json:
        notes = {key: [note._asdict() for note in getattr(done, key)] for key in ("lost", "changed")}
        print(json.dumps({"job": done.name, "values": done.values, **notes}, indent=1))
    elif to_stdout:
        print(content, end="")
    if not args.json:
        print(format_account(done), file=sys.stderr)
        if not to_stdout:
            print(f"wrote {args.output}; next:\n  trainyard up RELEASE -f {args.output} -n NAMESPACE")
    return int(bool(done.lost))


def parser() -> argparse.ArgumentParser:
    """Return the parser of `trainyard convert`."""
    own = parsing.command(
        "convert",
        "Write a values file for a PyTorchJob, an MPIJob or a TrainJob, and name what it cannot carry.",
        """
        trainyard convert job.yaml -o trainyard.yaml
        trainyard convert job.yaml --image registry.example.com/team/bert:1 -o bert.yaml
        trainyard convert job.yaml --command 'python /app/train.py' --json
        trainyard convert pytorchjob/bert -n vision -o bert.yaml
        kubectl get trainjob first -o yaml | trainyard convert - > first.yaml
        """,
        {0: "all is carried", 1: "the values are written, and something of the manifest is not carried"},
        "Standard error has each field that is not carried, with its path and what to do, and what the chart does in "
        "another way. docs/convert.md says how an image is built that holds the program and this package.",
    )
    own.add_argument("source", metavar="FILE|-|KIND/NAME",
                     help="a manifest, standard input, or a job of the cluster, such as pytorchjob/bert")  # fmt: skip
    own.add_argument(
        "-n", "--namespace", default="default", help="namespace of a job of the cluster (default: default)"
    )
    own.add_argument("-o", "--output", type=Path, default=Path("-"), metavar="FILE",
                     help="file to write, or - for standard output (default: -)")  # fmt: skip
    own.add_argument("--force", action="store_true", help="overwrite the file")
    own.add_argument(
        "--image", default="", help="image to use in place of the manifest's, such as one that holds this package"
    )
    left = "program of every rank, where the manifest leaves it to the image or starts several"
    own.add_argument("--command", default="", metavar="WORDS", help=left)
    own.add_argument("--json", action="store_true", help="print values and account as JSON")
    return own


def main(arguments: list[str] | None = None) -> int:
    """Convert a manifest; end 1 where something of it is lost, 2 where it cannot be converted."""
    args = parser().parse_args(arguments)
    return parsing.run_command("convert", lambda: run(args))
