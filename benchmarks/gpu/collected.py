"""Draw the tables of docs/gpu.md and docs/gpu-speed.md from the results that were sent (benchmarks/gpu/results).

    python -m benchmarks.gpu.collected [--check]       --check writes nothing; 1 if a table is not current

Raises check.WrongError for a file that proves nothing.
"""

import argparse
import datetime
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import arithmetic, check
from benchmarks.gpu.page import cell

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "gpu" / "results"
# By part and row of `make gpu`
EAGER = ("speed", "ours, generated pictures")
COMPILED = ("speed_compiled", "ours, generated pictures, compiled")
JPEGS = ("speed", "ours, JPEGs")
# In torch's names of the GPUs that the page predicts
NAMES = {"A100 40 GB": r"A100.*40GB", "H100 SXM": r"H100 80GB HBM3", "H200": r"H200"}


def results(folder: Path, root: Path) -> list[check.Result]:
    """Read all results of a folder, by GPU and time; raises check.WrongError."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            result = check.read(path)
        except check.WrongError as error:
            raise check.WrongError(f"{path.name}: {error}") from None
        origin = check.origin(result["source"], root)
        if origin.startswith("unknown") or not result["source"]["commit"]:
            raise check.WrongError(f"{path.name}: its programs are {origin}")
        found.append(result)
    return sorted(found, key=lambda result: (result["machine"]["gpu"], result["time"]))


def rate(result: check.Result, place: tuple[str, str]) -> float | None:
    """Return the images per second of a row, where it was measured."""
    rows = [row for part in result["parts"] if part["name"] == place[0] for row in part["rows"]]
    rates: list[float] = [row["rate"] for row in rows if row["name"] == place[1] and row.get("rate")]
    return rates[0] if rates else None


def draw_collected(found: Sequence[check.Result]) -> Iterator[str]:
    """Yield the lines of the table of what was sent."""
    if not found:
        yield "No result has been sent yet."
        return
    yield "| GPU | driver, torch | commit, day | rows | ResNet-50, img/s: eager, compiled, JPEGs | failed |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for result in found:
        about, day = result["machine"], datetime.datetime.fromtimestamp(result["time"], datetime.UTC).date()
        rates = ", ".join(shown(rate(result, place)) for place in (EAGER, COMPILED, JPEGS))
        rows = ", ".join(f"{count} {state}" for state, count in sorted(result["rows"].items()))
        versions = f"{about.get('driver') or '?'}, {about['versions']['torch']}"
        failed = "; ".join(line.partition(":")[0] for line in check.failures(result)) or "nothing"
        cells = [about["gpu"], versions, f"{result['source']['commit'][:9]}, {day}", rows, rates, failed]
        yield f"| {' | '.join(map(cell, cells))} |"


def draw_rates(found: Sequence[check.Result]) -> Iterator[str]:
    """Yield the lines of the table of rates that arithmetic allows, and of those that were measured."""
    yield "| GPU | form | MB an image | predicted, img/s | of 7,950 | measured, img/s |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for gpu, name in NAMES.items():
        for form, compiled, place in (("eager", False, EAGER), ("compiled", True, COMPILED)):
            predicted = arithmetic.rate(gpu, compiled)
            measured = [rate(one, place) for one in found if re.search(name, one["machine"]["gpu"])]
            best = max((value for value in measured if value), default=None)
            cells = [gpu, form, f"{arithmetic.megabytes(compiled):.0f}", f"{predicted:,.0f}",
                     f"{predicted / arithmetic.RECORD:.0%}", shown(best)]  # fmt: skip
            yield f"| {' | '.join(cells)} |"


def shown(value: float | None) -> str:
    """Return a rate as text."""
    return f"{value:,.0f}" if value else "not yet"


PAGES = {"docs/gpu.md": ("collected", draw_collected), "docs/gpu-speed.md": ("rates", draw_rates)}


def drawn(text: str, name: str, lines: Sequence[str]) -> str:
    """Return a page with the lines between its marks of that name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = text.split(begin)
    middle = "\n".join(lines)
    return f"{before}{begin}\n\n{middle}\n\n{end}{rest.split(end)[1]}"


def main() -> int:
    """Write the tables, or compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a table is not current")
    options = parser.parse_args()
    try:
        found: list[dict[str, Any]] = results(RESULTS, ROOT)
    except check.WrongError as error:
        print(f"error: {RESULTS}: {error}", file=sys.stderr)
        return 2
    old = []
    for page, (name, draw) in PAGES.items():
        path = ROOT / page
        text = path.read_text()
        new = drawn(text, name, list(draw(found)))
        if new != text:
            old.append(page)
            if not options.check:
                path.write_text(new)
    if options.check and old:
        print(f"{', '.join(old)}: not current; run python -m benchmarks.gpu.collected")
    return int(options.check and bool(old))


if __name__ == "__main__":
    sys.exit(main())
