"""Dockerfiles: each image that they stand on or copy from, by its digest."""

import re
from collections.abc import Iterator

from hack.pins.problems import DIGEST, Problem, exceptions

VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}|\$(\w+)")
FROM = re.compile(r"(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?\s*$", re.I)
OTHER = re.compile(r"--from=(\S+)|--mount=\S*\bfrom=([^,\s]+)")


def check(text: str) -> Iterator[Problem]:
    """Yield the images without a digest; a name in a variable is the one of its ARG.

    An exception is a comment at the instruction, or at the ARG that names the image.
    """
    reasons = exceptions(text)
    defaults: dict[str, tuple[str, int]] = {}
    stages: set[str] = set()
    for line, instruction, rest in instructions(text):
        if instruction == "ARG" and not stages:
            name, _, value = rest.partition("=")
            defaults[name.strip()] = value.strip().strip("\"'"), line
        if instruction == "FROM" and (match := FROM.match(rest)):
            yield from _images([match[1]], line, stages, defaults, reasons)
            stages.add((match[2] or f"stage {line}").lower())
        if instruction in ("COPY", "ADD", "RUN"):
            named = [one or other for one, other in OTHER.findall(rest)]
            yield from _images(named, line, stages, defaults, reasons)


def _images(
    names: list[str], line: int, stages: set[str], defaults: dict[str, tuple[str, int]], reasons: dict[int, str]
) -> Iterator[Problem]:
    for name in names:
        used = [one or other for one, _, other in VARIABLE.findall(name)]
        image = VARIABLE.sub(lambda match: defaults.get(match[1] or match[3], ("", 0))[0] or match[2] or "", name)
        if image == "scratch" or image.lower() in stages or image.isdigit() or DIGEST.search(image):
            continue
        places = [line, *(defaults[one][1] for one in used if one in defaults)]
        reason = next((reasons[place] for place in places if place in reasons), "")
        yield Problem(line, f"the image {image or name} is not named by its digest", reason)


def instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the instructions, each with its first line's number and on one line; comments within are left out."""
    start, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        start = start or number
        parts.append(line.strip().removesuffix("\\"))
        if not line.rstrip().endswith("\\"):
            word, _, rest = " ".join(parts).partition(" ")
            yield start, word.upper(), rest.strip()
            start, parts = 0, []
