"""Commands of Dockerfiles, shell scripts and workflows by which pip fetches: each compares packages with hashes."""

import re
from collections.abc import Iterator

from hack.pins.problems import Problem, exceptions

PIP = re.compile(r"\bpip3?(?:\[@\]\})?[\"']?\s+(?:-\S+\s+)*(?:install|download|wheel)\b")
END = re.compile(r"&&|\|\||[;|\n]")
HASHED = re.compile(r"\s--(?:require-hashes|no-index)\b")
# with --no-deps, a wheel of this machine brings nothing else; nor does a source, built with what is there
LOCAL = re.compile(r"\s--no-deps\b.*\s(?:--no-build-isolation\b.*\s\.|[\"']?\$wheel[\"']?|\S+\.whl)(?=\s|$)")
COMMENT = re.compile(r"(?m)(?:^|[ \t])#.*$")


def check(text: str) -> Iterator[Problem]:
    """Yield the commands that fetch what no hash is compared with."""
    reasons = exceptions(text)
    for line, command in _commands(text):
        if PIP.search(command) and not HASHED.search(command) and not LOCAL.search(command):
            words = " ".join(command.split())
            yield Problem(line, f"pip fetches without --require-hashes: {words}", reasons.get(line, ""))


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """Yield simple commands with the number of their first line."""
    code = COMMENT.sub("", text)
    begin = 0
    joined = code.replace("\\\n", "  ")  # as long as before: places stay
    for end in [*(match.start() for match in END.finditer(joined)), len(joined)]:
        command = joined[begin:end]
        lead = len(command) - len(command.lstrip())
        yield _line(code, begin + lead), command
        begin = end + 1


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1
