"""Judge a `result.json` of `make gpu` again: whole, of a GPU, of programs that are known, and right by its figures.

What is written as ok is not taken for it: each row's figures are compared with the bounds beside them, each part's
state with its rows. The hash of the file finds what a copy or an editor has changed; it keeps nobody from writing a
file of his own. So a result is as good as who sends it, and the commit that it names can be run again.
"""

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import machine
from benchmarks.gpu.part import beyond

FORMAT = 1
MOST_BYTES = 16 << 20
PASSED = ("ok", "needs a GPU", "not here", "not known", "not run")  # states of rows that fail nothing
Result = dict[str, Any]


class WrongError(Exception):
    """A file is no whole result of a GPU; says why."""


def report(paths: Sequence[Path], root: Path) -> int:
    """Print what each file is worth; 0 if all is right, 1 if something has failed on the GPU, 2 if a file is wrong."""
    worst = 0
    for path in paths:
        try:
            result = read(path)
        except WrongError as error:
            print(f"error: {path}: {printable(str(error))}", file=sys.stderr)
            worst = 2
            continue
        failed = list(failures(result))
        for line in (*describe(result, root), *(f"  FAILED: {line}" for line in failed)):
            print(printable(line))
        worst = max(worst, int(bool(failed)))
    return worst


def describe(result: Result, root: Path) -> Iterator[str]:
    """Yield lines on a result: GPU, versions, programs, parts, rows."""
    about = result["machine"]
    yield f"{about['gpu']}, driver {about.get('driver') or 'unknown'}, torch {about['versions']['torch']}"
    yield f"  programs: {origin(result['source'], root)}"
    yield "  parts: " + ", ".join(f"{part['name']} {part['state']}" for part in result["parts"])
    yield "  rows: " + ", ".join(f"{count} {state}" for state, count in sorted(result["rows"].items()))


def printable(text: str) -> str:
    """Return a stranger's text without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def read(path: Path) -> Result:
    """Read a result; raises WrongError where it is not whole, not of a GPU, or contradicts itself."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise WrongError(f"larger than {MOST_BYTES >> 20} MiB; send result.json alone")
        result = json.loads(path.read_bytes())
    except OSError as error:
        raise WrongError(f"cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise WrongError("is no JSON; send the file that `make gpu` writes as result.json") from None
    if not isinstance(result, dict) or result.get("format") != FORMAT:
        raise WrongError(f"is no result of format {FORMAT}; send the file that `make gpu` writes as result.json")
    if result.get("sha256") != digest(result):
        raise WrongError("was changed after it was written: its hash is another; send the file as it was written")
    try:
        why = next(contradictions(result), "")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise WrongError(f"lacks what a result has ({type(error).__name__}: {error})") from None
    if why:
        raise WrongError(why)
    return result


def digest(result: Result) -> str:
    """Return the SHA-256 of all of a result but its `sha256`, however the JSON is spaced and ordered."""
    rest = {key: value for key, value in result.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def contradictions(result: Result) -> Iterator[str]:
    """Yield why a result proves nothing."""
    about, parts = result["machine"], result["parts"]
    if about["device"] != "cuda" or not about["gpu"]:
        yield "ran without a GPU, which proves nothing about one"
    if not about["versions"]["torch"] or len(result["source"]["sha256"]) != 64:
        yield "does not say which torch, or which programs"
    if [part["name"] for part in parts] != result["asked"]:
        yield f"lacks parts that were asked for: it has {len(parts)} of {len(result['asked'])}; run it to its end"
    if result["rows"] != count_states(parts):
        yield "counts other states than its rows have"
    for part in parts:
        if part["state"] in ("ok", "failed", "needs a GPU") and part["state"] != state_of(part["rows"]):
            yield f"part {part['name']} is {part['state']!r}, and its rows say {state_of(part['rows'])!r}"
        for row in part["rows"]:
            if row["state"] == "ok" and (far := beyond(row)):
                yield f"{part['name']}, {row['name']}: ok, and not within its bounds: {', '.join(far)}"


def count_states(parts: Sequence[Result]) -> dict[str, int]:
    """Return how many rows have each state."""
    return dict(Counter(row["state"] for part in parts for row in part["rows"]))


def state_of(rows: Sequence[Result]) -> str:
    """Return the state of a part that has ended by itself."""
    states = {row["state"] for row in rows}
    return "failed" if "failed" in states else "needs a GPU" if states == {"needs a GPU"} else "ok"


def failures(result: Result) -> Iterator[str]:
    """Yield what has failed on that GPU: parts that did not end well, and rows."""
    for part in result["parts"]:
        if part["state"] not in ("ok", "failed", "needs a GPU"):
            yield f"{part['name']}: {part['state']}"
        for row in part["rows"]:
            if row["state"] not in PASSED:
                yield f"{part['name']}, {row['name']}: {row['text']}"


def origin(source: dict[str, str], root: Path) -> str:
    """Say which programs ran: these ones, a commit's as git has them, or others."""
    if source["sha256"] == machine.source(root)["sha256"]:
        return "those of this checkout"
    commit = source.get("commit", "")
    if not commit or commit.endswith("-dirty"):
        return f"unknown, of {'a changed ' if commit else 'no '}commit {commit}".strip()
    found = hash_of_commit(commit, root)
    if not found:
        return f"of commit {commit}, which this checkout does not have; `git fetch` may bring it"
    return f"of commit {commit}" if found == source["sha256"] else f"unknown: commit {commit} has others"


def hash_of_commit(commit: str, root: Path) -> str:
    """Return the hash of the programs of a commit, as machine.source computes it; empty where git has none."""
    if not re.fullmatch("[0-9a-f]{7,64}", commit):
        return ""
    command = ["git", "-C", str(root), "archive", "--format=tar", commit, *machine.PROGRAMS]
    try:
        packed = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        files = {member.name: archive.extractfile(member) for member in archive if member.name.endswith(".py")}
        return machine.hash_of({name: file.read() for name, file in files.items() if file})
