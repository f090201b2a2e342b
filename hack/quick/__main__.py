"""Check what a change touches, in two minutes on two slow cores: static checks first, then the tests nearest to it.

BASE=REVISION    compare with another commit than the one where the branch left its upstream
BUDGET=SECONDS   take longer, and leave out less
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence

from hack.quick import checks, choose, costs, links
from hack.quick.changes import ROOT, base, changed, git, tree
from hack.quick.choose import Concerned
from tests import patience

BUDGET = 120.0
STARTS = 15.0  # seconds of pytest's own, on a machine that is not slow: workers, and what test files import
LAST = 10.0  # seconds before the end in which no test begins
WORTH_WORKERS = 20.0  # seconds of tests from which on several workers pay
SHOWN = 10  # lines of what was chosen
NOT_HERE = "not e2e and not images and not root and not soak"


def say(text: str) -> None:
    """Print one line."""
    print(f"quick: {text}", flush=True)


def count(files: int) -> str:
    """Count files in words."""
    return f"{files} file{'' if files == 1 else 's'}"


def some(names: Sequence[str], most: int = 6) -> str:
    """Name a few of many."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def main() -> int:
    """Choose and run; return 1 where something fails."""
    begun, budget = time.monotonic(), float(os.environ.get("BUDGET") or BUDGET)
    since = base(os.environ.get("BASE", ""))
    files = changed(since)
    if not files:
        say(f"nothing differs from {since}")
        return 0
    say(f"{count(len(files))} differ from {git('rev-parse', '--short', since)}: {some(files)}")
    failed = [] if lint(files) else ["static checks"]
    failed += [] if chart(files) else ["the chart's unit tests"]
    try:
        found = choose.concerned(files, links.users(tree()))
    except SyntaxError as error:
        say(f"no tests are chosen: {error}")
        return 1
    slowness, known = patience.slowness(), costs.measured()
    here, elsewhere = split([one for one in found if (ROOT / one.path).exists()])
    cost = {one.path: costs.seconds(one.path, known, slowness) for one in here}
    left = budget - (time.monotonic() - begun)
    workers = os.cpu_count() or 1
    chosen, late = choose.fit(here, cost.__getitem__, left - STARTS * slowness, workers)
    tell(chosen, late, elsewhere, cost, workers)
    if chosen and not run([one.path for one in chosen], sum(cost[one.path] for one in chosen), left):
        failed.append("tests")
    say(f"{', '.join(failed)} FAILED" if failed else f"all of that is well, after {time.monotonic() - begun:.0f} s")
    return int(bool(failed))


def lint(files: Sequence[str]) -> bool:
    """Run the static checks that the change concerns."""
    only = [word for name in checks.concerned(files) for word in ("--only", name)]
    there = [path for path in files if (ROOT / path).is_file()]
    return not subprocess.run([ROOT / "hack/lint", *only, *there], check=False).returncode


def chart(files: Sequence[str]) -> bool:
    """Run those of the chart's unit tests that the change concerns."""
    units, program = checks.chart_units(files), ROOT / "build/bin/helm-unittest"
    if units and not program.exists():
        say("the chart's unit tests are left out: `make tools` builds what they need, once")
        return True
    codes = []
    for folder, patterns in units.items():
        only = [word for pattern in patterns for word in ("-f", pattern)]
        done = subprocess.run([program, "--strict", "--with-subchart=false", *only, ROOT / folder], check=False)
        codes.append(done.returncode)
    return not any(codes)


def split(found: Sequence[Concerned]) -> tuple[list[Concerned], dict[str, list[str]]]:
    """Part the files that can be run here from those that cannot, by what they need (costs.ELSEWHERE)."""
    here: list[Concerned] = []
    elsewhere: dict[str, list[str]] = {}
    for one in found:
        if needs := costs.marks((ROOT / one.path).read_text()).elsewhere:
            elsewhere.setdefault(needs, []).append(one.path)
        else:
            here.append(one)
    return here, elsewhere


def tell(
    chosen: Sequence[Concerned],
    late: Sequence[Concerned],
    elsewhere: dict[str, list[str]],
    cost: dict[str, float],
    workers: int,
) -> None:
    """Say what was chosen and why, what was left out, and what runs that."""
    say(f"{count(len(chosen))} of tests, about {sum(cost[one.path] for one in chosen):.0f} s of work")
    for one in chosen[:SHOWN]:
        print(f"  {one.path} ({cost[one.path]:.0f} s): {one.why()}")
    if more := chosen[SHOWN:]:
        print(f"  {some([one.path for one in more], 3)}")
    if late:
        seconds = sum(cost[one.path] for one in late)
        say(f"left out for want of time, about {seconds:.0f} s of work: {some([one.path for one in late], 3)};")
        say(f"they run by: BUDGET={2 * (BUDGET + seconds / workers):.0f} make quick")
    for needs, paths in elsewhere.items():
        place, run_by, all_of_them = costs.ELSEWHERE[needs]
        words = paths if len(paths) < SHOWN else all_of_them
        say(f"left out for {place}, {count(len(paths))}: {run_by} {shlex.join(words)}")


def run(paths: Sequence[str], seconds: float, left: float) -> bool:
    """Run test files, on several workers where that pays; tests that would begin when the time is over are skipped."""
    workers = ["-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder"] if seconds > WORTH_WORKERS else []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "hack.quick.deadline", *workers, "-m", NOT_HERE, *paths]
    env = {**os.environ, "QUICK_UNTIL": str(time.time() + left - LAST), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode in (0, 5)  # 5: none was collected


if __name__ == "__main__":
    sys.exit(main())
