"""Draw the tables of docs/compatibility.md: `python -m hack.compatibility [build/ran.jsonl]`.

What tests noted (tests/ran.py) is taken into ran.json first: the newest outcome of each cell, of the versions that are
built now. With --check nothing is taken in, and it fails where the page is not current.
"""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hack.compatibility.rows import HERE, ROOT, built, programs, rows
from hack.reference.markdown import table

NOTED, KEPT, PAGE = ROOT / "build" / "ran.jsonl", HERE / "ran.json", ROOT / "docs" / "compatibility.md"
RAN = ("", "version", "what ran", "outcome", "last run", "repeated for")
KNOWN = ("", "tested", "expected", "refused", "maintained until")
Record = dict[str, Any]


def merged(kept: Iterable[Record], noted: Iterable[Record], versions: dict[str, list[str]]) -> list[Record]:
    """Return the newest record of each cell, of the versions that are built, in the order of the table.

    A cell that is run with each change may be run before a release, too.
    """
    newest: dict[tuple[str, str, str], Record] = {}
    for one in sorted([*kept, *noted], key=lambda one: str(one["time"])):
        if one["version"] in versions.get(one["program"], []):
            cell = one["program"], one["version"], one["tried"]
            newest[cell] = one | {"soak": one["soak"] and newest.get(cell, one)["soak"]}
    order = [(program, version) for program in versions for version in versions[program]]
    return [newest[cell] for cell in sorted(newest, key=lambda one: (order.index(one[:2]), one[2]))]


def draw_ran(records: list[Record], versions: dict[str, list[str]]) -> list[str]:
    """Return the table of what ran: a line for all that ended alike with a version, and for one that never ran."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for program, each in versions.items():
        for version in each:
            found = of(records, program, version)
            for one in found:
                lines.setdefault((program, version, *outcome(one)), []).append(one["tried"])
            if not found:
                lines[program, version, "", "", ""] = ["nothing yet"]
    return table(
        RAN, [[program, version, "; ".join(tried), *rest] for (program, version, *rest), tried in lines.items()]
    )


def of(records: list[Record], program: str, version: str) -> list[Record]:
    """Return the records of a version."""
    return [one for one in records if (one["program"], one["version"]) == (program, version)]


def outcome(one: Record) -> tuple[str, str, str]:
    """Return how a record's test ended, when, and how often it is run."""
    return (
        "passed" if one["passed"] else f"**failed** at {one['commit']}",
        one["time"][:10],
        "a release" if one["soak"] else "each change",
    )


def draw_known(records: list[Record], versions: dict[str, list[str]]) -> list[str]:
    """Return the table of what is known: a line for each row, with the versions of which all that ran has passed."""
    lines = []
    for row in rows():
        there = []
        for name in programs(row):
            passed = [
                one for one in versions[name] if (had := of(records, name, one)) and all(r["passed"] for r in had)
            ]
            there += [one if len(programs(row)) == 1 else f"{name} {one}" for one in passed]
        tested = "; ".join(filter(None, (", ".join(there), row.get("tested", ""))))
        lines.append([row["name"], tested, *(row.get(key, "") for key in ("expected", "refused", "until"))])
    return table(KNOWN, lines)


def with_table(page: str, name: str, lines: list[str]) -> str:
    """Return the page with a table below the comment that names it. Raises ValueError where there is none."""
    head, comment, rest = page.partition(f"<!-- {name}: python -m hack.compatibility -->\n\n")
    if not comment:
        raise ValueError(f"{PAGE.name} has no comment <!-- {name}: python -m hack.compatibility -->")
    return head + comment + "\n".join(lines) + "\n\n" + re.sub(r"^(?:\|.*\n)*\n*", "", rest)


def read(path: Path) -> list[Record]:
    """Return the records of a file of lines; none where it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main(arguments: list[str]) -> int:
    """Take in what was noted, and write the page; or compare it with what is kept."""
    check, versions = "--check" in arguments, built()
    paths = [Path(one) for one in arguments if one != "--check"] or [NOTED]
    noted = [] if check else [one for path in paths for one in read(path)]
    records = merged(json.loads(KEPT.read_text()), noted, versions)
    text = "[\n" + ",\n".join(f" {json.dumps(one, sort_keys=True)}" for one in records) + "\n]\n"
    page = with_table(PAGE.read_text(), "ran", draw_ran(records, versions))
    page = with_table(page, "known", draw_known(records, versions))
    stale = [path for path, new in ((KEPT, text), (PAGE, page)) if path.read_text() != new]
    for path in stale:
        print(f"{'not current' if check else 'written'}: {path.relative_to(ROOT)}", file=sys.stderr)
        if not check:
            path.write_text({KEPT: text, PAGE: page}[path])
    if check and stale:
        print("run python -m hack.compatibility and commit what it writes", file=sys.stderr)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
