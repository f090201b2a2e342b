"""Refuse functions that the SDK's way to a TrainJob, as text through a shell, would change."""

import builtins
import inspect
import re
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

# The SDK puts the text into an unquoted bash heredoc, which would change or drop these
CHANGED_BY_BASH = (
    (r"\$", "a dollar sign, which bash expands: read variables by os.environ, and write chr(36) for the sign itself"),
    (r"`", "a backtick, which bash runs as a command: leave it out, or write chr(96)"),
    (r"\\\\", "two backslashes, of which bash keeps one: write chr(92)"),
    (r"\\$", "a backslash at the end of a line, which bash joins with the next: use brackets"),
    (r"^EOM$", "EOM alone on a line, where the SDK's text would end"),
)


def fail(message: str) -> NoReturn:
    """Say why the script ends, without a traceback."""
    sys.exit(f"error: {message}")


def check(function: Callable[..., None], arguments: Mapping[str, Any]) -> None:
    """Refuse a function, or its arguments, that would arrive changed in the job."""
    name, source = function.__name__, textwrap.dedent(inspect.getsource(function))
    for number, line in enumerate([*source.splitlines(), f"{name}(**{dict(arguments)})"], 1):
        for pattern, what in CHANGED_BY_BASH:
            if re.search(pattern, line):
                fail(f"{name}, line {number} ({line.strip()[:60]!r}) has {what}")
    if missing := sorted(set(_outside(symtable.symtable(source, name, "exec"))) - {name, *dir(builtins)}):
        fail(f"{name} uses {', '.join(missing)} from outside, which is not sent along: import or define it inside")
    try:
        same = eval(repr(dict(arguments)), {"__builtins__": {}}) == dict(arguments)
    except Exception:
        same = False
    if not same:
        fail(f"{name}: {dict(arguments)} cannot be sent as text; use numbers, texts, lists and dicts")


def _outside(table: symtable.SymbolTable) -> Iterator[str]:
    """Names that a text uses and does not define, its builtins and annotations among them."""
    for symbol in table.get_symbols():
        if symbol.is_referenced() and symbol.is_global() and not symbol.is_assigned():
            yield symbol.get_name()
    for child in table.get_children():
        yield from _outside(child)
