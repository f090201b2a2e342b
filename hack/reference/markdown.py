"""Tables and code in Markdown."""

from collections.abc import Iterable

NOTE = "`python -m hack.reference` generates this page; lint fails when it is not current."


def cell(text: str) -> str:
    """Return a text as it may stand in a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return a table's lines."""
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return ["| " + " | ".join(cell(one) for one in line) + " |" for line in lines]


def page(*parts: str | list[str]) -> str:
    """Join paragraphs, and lists of lines, with an empty line between them."""
    return "\n\n".join("\n".join(part) if isinstance(part, list) else part.strip() for part in parts) + "\n"
