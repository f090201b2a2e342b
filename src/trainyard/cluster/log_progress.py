"""Read how far a job is from the lines of src/trainyard/telemetry/console.py and src/trainyard/prepare/progress.py."""

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

STEP = re.compile(r"^step +(\d+)/(\d+)  .*?([\d,]+) img/s(?:  goodput (\d+) %)?(?:  eta (\S+(?: days?, \S+)?))?")
VALIDATED = re.compile(r"^epoch \d+/\d+  validated .*?top1 ([\d.]+) %")
STARTED = re.compile(r": (\d+) steps of \d+, \w+ on \d+ processes")
RESUMED = re.compile(r"^resumed at step (\d+);")
ENDED = re.compile(r"^finished: top1 ([\d.]+) %, .*?([\d,]+) img/s over .*? of training(?:, goodput (\d+) %)?")
BEFORE = re.compile(r"^run \S+ is finished: (\d+) steps, top1 ([\d.]+) %")
PREPARING = re.compile(r"^preparing: .*?([\d,]+) of ([\d,]+) images .*? ([\d,]+) images/s · (?:([\d:]+) left)?")
PREPARED = re.compile(r"^prepared \S+: (.*?) samples")
ETA = "eta_seconds"


@dataclass(frozen=True)
class RunProgress:
    """Progress as read from a job's log; None where the log has not said."""

    step: int | None = None  # of a preparation: images
    steps: int | None = None
    eta_seconds: int | None = None
    top1: float | None = None  # percent, of the last validation
    images_per_second: float | None = None
    goodput: float | None = None  # share of all seconds so far, 0 to 1


def seconds(clock: str) -> int:
    """Return the seconds of a duration such as 0:10, 1:02:03 or `2 days, 1:02:03`."""
    days, _, rest = clock.rpartition(", ")
    total = 0
    for part in rest.split(":"):
        total = 60 * total + int(part)
    return total + (int(days.split()[0]) * 86400 if days else 0)


def number(text: str) -> int:
    """Return a number that is written with commas."""
    return int(text.replace(",", ""))


def read(text: str, known: RunProgress = RunProgress()) -> RunProgress:
    """Return what is known after some more lines of a log."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # a line of somebody else that looks like one of ours
            told = next((told(found, known) for pattern, told in READERS if (found := pattern.search(line))), {})
            known = replace(known, **told)
    return known


def of_step(found: re.Match[str], _: RunProgress) -> dict[str, Any]:
    """Return what a line of progress tells."""
    step, steps, rate, good, eta = found.groups()
    told = {"step": int(step), "steps": int(steps), "images_per_second": number(rate), "goodput": share(good)}
    return told | {ETA: seconds(eta) if eta else None}


def of_end(found: re.Match[str], known: RunProgress) -> dict[str, Any]:
    """Return what the last line of a run tells."""
    top1, rate, good = found.groups()
    told = {"step": known.steps, "top1": float(top1), "images_per_second": number(rate), "goodput": share(good)}
    return told | {ETA: 0}


def of_finished(found: re.Match[str], _: RunProgress) -> dict[str, Any]:
    """Return what a job tells that finds its run finished."""
    return {"step": int(found[1]), "steps": int(found[1]), "top1": float(found[2]), ETA: 0}


def of_images(found: re.Match[str], _: RunProgress) -> dict[str, Any]:
    """Return what a line of a preparation tells."""
    done, of, rate, left = found.groups()
    told = {"step": number(done), "steps": number(of), "images_per_second": number(rate)}
    return told | {ETA: seconds(left) if left else None}


def of_prepared(found: re.Match[str], _: RunProgress) -> dict[str, Any]:
    """Return what the last line of a preparation tells."""
    images = sum(map(number, re.findall(r"\d[\d,]*", found[1])))
    return {"step": images, "steps": images, ETA: 0}


def share(percent: str | None) -> float | None:
    """Return a percentage from 0 to 1."""
    return int(percent) / 100 if percent else None


READERS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], RunProgress], dict[str, Any]]], ...] = (
    (STEP, of_step),
    (VALIDATED, lambda found, _: {"top1": float(found[1])}),
    (STARTED, lambda found, _: {"step": 0, "steps": int(found[1])}),
    (RESUMED, lambda found, _: {"step": int(found[1])}),
    (ENDED, of_end),
    (BEFORE, of_finished),
    (PREPARING, of_images),
    (PREPARED, of_prepared),
)
