"""Tables that stay readable on a phone: every cell carries the heading of its column, which site.css shows there."""

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor


class Labels(Treeprocessor):
    """Gives each cell of a table its column's heading, as the attribute data-label."""

    def run(self, root: Element) -> None:
        """Label the cells of all tables of a page."""
        for table in root.iter("table"):
            head, *rows = table.iter("tr")
            labels = ["".join(cell.itertext()).strip() for cell in head]
            for cell, label in labelled(rows, labels):
                cell.set("data-label", label)


def labelled(rows: list[Element], labels: list[str]) -> Iterator[tuple[Element, str]]:
    """Yield the cells that have text, each with its label; the first of a row is the row's own heading."""
    for row in rows:
        for cell, label in list(zip(row, labels, strict=False))[1:]:
            if label:
                yield cell, label


class LabelledTables(Extension):
    """The extension of Python-Markdown."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 (the library's name)
        """Run after inline code and links are elements, so that a heading's text is all there."""
        md.treeprocessors.register(Labels(md), "labelled-tables", 5)
