"""Writes converted values as a file with comments: what each part is for, and what of the manifest it does not have."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from trainyard.cluster.conversion.ledger import Note

WIDTH = 120
# Comments above a key, by its path
COMMENTS = {
    "global.image": "The image holds the program and this package, whose launcher and checks its pods run.",
    "global.storage.results": "/results: logs of the pods, and below $TRAINYARD_RUN_DIR what the program writes there.",
    "global.storage.data": "/data",
    "global.training.command": "What torchrun or mpirun starts on every rank.",
    "global.training.config": "By this setting mpirun starts the ranks of a TrainJob.",
    "global.training.gpusPerNode": "One process for each.",
    "global.training.shmSize": "Of /dev/shm. Processes that pass batches to each other need more than the usual 64Mi.",
    "global.training.extraVolumes": "Mounted where the manifest has them.",
    "dataset": "The program brings its own data. With a dataset here the pods wait for it, and have it at /data.",
}


class Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such, and nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write everything where it stands."""
        return True


def _text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
    """Quote what Helm's reader of YAML would take for a number or a truth, as 5e-5 and y, and PyYAML would not."""
    style = "|" if "\n" in data else '"' if re.match(r"[-+.0-9]|[yYnN]$", data) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)


Dumper.add_representer(str, _text)


def text(values: dict[str, Any], of: str, lost: Sequence[Note], changed: Sequence[Note]) -> str:
    """Return the file."""
    body = yaml.dump(values, Dumper=Dumper, sort_keys=False, width=WIDTH - 20, allow_unicode=True)
    return "\n".join([*heading(of, lost, changed), *add_comments(body)]) + "\n"


def heading(of: str, lost: Sequence[Note], changed: Sequence[Note]) -> Iterator[str]:
    """Yield the comment at the top."""
    yield f"# Values of the chart trainyard for {of}, written by `trainyard convert`. `trainyard up` applies them."
    yield "# All keys: README.md of the chart (`helm show readme CHART`)."
    for title, notes in (("Not carried", lost), ("Done in another way", changed)):
        if notes:
            yield "#"
            yield f"# {title}:"
        for note in notes:
            said = f"{note.path}: {note.value}: {note.why}" if note.value else f"{note.path}: {note.why}"
            yield from textwrap.wrap(
                said, WIDTH, initial_indent="# - ", subsequent_indent="#   ", break_long_words=False
            )


def add_comments(body: str) -> Iterator[str]:
    """Yield the lines of YAML with the comments of the keys that have one."""
    above: list[str] = []
    for line in body.splitlines():
        key = re.match(r"( *)([A-Za-z]+):( |$)", line)
        if key:
            depth = len(key[1]) // 2
            above = [*above[:depth], key[2]]
            if len(above) == depth + 1 and (said := COMMENTS.get(".".join(above))):
                yield f"{key[1]}# {said}"
        yield line
