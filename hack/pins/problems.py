"""What is wrong with a pin, and where. An exception is a comment at a line or right above it: `not pinned: REASON`."""

import re
from typing import NamedTuple

DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
EXCEPTION = re.compile(r"#\s*not pinned:\s*(\S.*)")


class Problem(NamedTuple):
    """A pin that is missing; with a reason, if that is on record."""

    line: int
    what: str
    reason: str = ""


def exceptions(text: str) -> dict[int, str]:
    """Return the reasons by the lines that they are for: the comment's own, or the one below a line of comment."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if match := EXCEPTION.search(line):
            found[number + line.lstrip().startswith("#")] = match[1].strip()
    return found
