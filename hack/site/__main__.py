"""Build the documents' site: `python -m hack.site [FOLDER]`, by default build/site. A broken link is an error.

mkdocs knows one folder of pages; here documents link to any file of the repository. So the pages are laid out as in the
repository, beginning at the index; a linked file that is no page becomes one that shows it, a folder one that lists it.
"""

import logging
import os
import re
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from urllib.parse import unquote

os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")  # Material prints it at its import

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from pymdownx.slugs import slugify

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INDEX = "docs/README.md"
LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")
ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)#]+)\)", re.M)
IMAGES = {".svg", ".png"}
HIDDEN = "---\nsearch: {exclude: true}\n---\n\n"  # found by the pages that link to it
EXTENSIONS = [
    {"toc": {"permalink": True, "slugify": slugify(case="lower")}},  # anchors as GitHub has them
    "tables",
    "sane_lists",
    {"pymdownx.highlight": {"pygments_lang_class": True}},
    "pymdownx.superfences",
]
Nav = list[dict[str, list[dict[str, str]]]]


def navigation(index: str) -> Nav:
    """Return the sections of the index, each with its pages by title; the paths are the repository's."""
    found: Nav = [{"Home": [{"All pages by task": INDEX}]}]
    for section in re.split(r"^## ", index, flags=re.M)[1:]:
        entries = ENTRY.findall(section)
        found.append({section.partition("\n")[0]: [{name: beside(INDEX, to)} for name, to in entries]})
    return found


def lay_out(root: Path, out: Path) -> None:
    """Write all documents below `out`, and what they link to."""
    waiting = {"README.md", *(str(path.relative_to(root)) for path in (root / "docs").rglob("*.md"))}
    done: set[str] = set()
    while waiting:
        path = waiting.pop()
        done.add(path)
        source, to = root / path, out / path
        to.parent.mkdir(parents=True, exist_ok=True)
        text, linked = "", set[str]()
        if (source / "README.md").exists():
            linked = {f"{path}/README.md"}
        elif source.is_dir():
            to, (text, linked) = to / "README.md", listing(source, path)
        elif source.suffix == ".md":
            text, linked = page(root, path)
        elif source.suffix in IMAGES:
            shutil.copy(source, to)
        else:
            to, text = (
                to.with_name(f"{to.name}.md"),
                f"{HIDDEN}# {path}\n\n````text\n{source.read_text().rstrip()}\n````\n",
            )
        if text:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(text)
        waiting |= linked - done


def page(root: Path, path: str) -> tuple[str, set[str]]:
    """Return a document as the site has it, and the paths that it links to."""
    linked = set[str]()

    def replaced(match: re.Match[str]) -> str:
        link = match[1]
        if ":" in link:
            return link
        to = beside(path, unquote(link))
        if not (root / to).exists():
            raise Abort(f"{path} links to {link}, which does not exist")
        linked.add(to)
        return link + ending(root / to)

    parts = re.split(r"(^```.*?^```$)", (root / path).read_text(), flags=re.M | re.S)
    text = "".join(part if part.startswith("```") else pipes(LINK.sub(replaced, part)) for part in parts)
    return text, linked


def pipes(text: str) -> str:
    """Write a pipe within code in a table as Python-Markdown reads it; GitHub wants it escaped."""
    return re.sub(r"(?<!`)`[^`\n]+`(?!`)", lambda code: code[0].replace("\\|", "|"), text)


def ending(path: Path) -> str:
    """Return what the address of the page of a file or folder has more than its path."""
    if path.is_dir():
        return "/README.md"
    return "" if path.suffix in {".md", *IMAGES} else ".md"


def listing(folder: Path, path: str) -> tuple[str, set[str]]:
    """Return a page that lists what a folder holds, and the paths of that."""
    found = sorted(one for one in folder.iterdir() if not one.name.startswith((".", "__pycache__")))
    lines = [f"- [{one.name}]({one.name}{ending(one)})" for one in found]
    return "\n".join([f"{HIDDEN}# {path}", "", *lines, ""]), {f"{path}/{one.name}" for one in found}


def beside(path: str, link: str) -> str:
    """Return the path in the repository to which a page's relative link leads."""
    return os.path.normpath(Path(path).parent / link)


def main(arguments: list[str]) -> int:
    """Lay the pages out and build the site; returns 1 where a link leads nowhere."""
    logging.basicConfig(level=logging.WARNING, format="site: %(message)s")  # what a broken link is
    out = Path(arguments[0] if arguments else ROOT / "build" / "site").resolve()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    with tempfile.TemporaryDirectory() as work:
        pages = Path(work) / "pages"
        try:
            lay_out(ROOT, pages)
            shutil.copy(HERE / "site.css", pages)
            shutil.copy(ROOT / "charts/trainyard/icon.svg", pages)
            build(load_config(
                str(HERE / "mkdocs.yml"), site_name=f"trainyard {version}", docs_dir=str(pages), site_dir=str(out),
                nav=navigation((ROOT / INDEX).read_text()), markdown_extensions=EXTENSIONS,
            ))  # fmt: skip
        except Abort as error:
            print(f"site: {error}", file=sys.stderr)
            return 1
    print(f"site: {out}/index.html; with search: python3 -m http.server -b 127.0.0.1 -d {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
