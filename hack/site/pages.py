"""The pages of the site: the documents, and every file of the repository that they link to.

They are laid out as in the repository, so links stay as they are. Only README moves, to overview.md: the front page is
home.md of this folder. A linked file that is no page becomes one that shows it, a linked folder one that lists it.
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

INDEX = "docs/README.md"
HOME = "hack/site/home.md"
MOVED = {"README.md": "overview.md"}
LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")
ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)#]+)\)", re.M)
IMAGES = {".svg", ".png"}
LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".c": "c",
    ".toml": "toml",
    ".sh": "bash",
}
HIDDEN = "---\nsearch: {exclude: true}\n---\n\n"  # found by the pages that link to it
Nav = list[dict[str, list[dict[str, str]]]]


def navigation(index: str) -> Nav:
    """Return the sections of the index, each with its pages by title; the paths are the repository's."""
    _, *sections = re.split(r"^## ", index, flags=re.M)
    found: Nav = [{"Home": [{"trainyard": "index.md"}, {"All pages by task": INDEX}]}]
    for section in sections:
        title = section.partition("\n")[0]
        found.append({title: [{name: placed(beside(INDEX, to))} for name, to in ENTRY.findall(section)]})
    return found


def placed(path: str) -> str:
    """Return where a page of the repository is on the site."""
    return MOVED.get(path, path)


def lay_out(root: Path, out: Path) -> None:
    """Write the pages below `out`, beginning at the index, and what they link to."""
    waiting, done = ["README.md", INDEX], set()
    out.mkdir(parents=True)
    (out / "index.md").write_text(page(root, HOME, waiting.append, at="index.md"))
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        source = root / path
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        if (source / "README.md").exists():
            waiting.append(f"{path}/README.md")
        elif source.is_dir():
            (out / path).mkdir(exist_ok=True)
            (out / path / "README.md").write_text(listing(root, path, waiting.append))
        elif source.suffix == ".md":
            (out / placed(path)).write_text(page(root, path, waiting.append))
        elif source.suffix in IMAGES:
            shutil.copy(source, out / path)
        else:
            (out / f"{path}.md").write_text(shown(path, source.read_text()))


def page(root: Path, path: str, follow: Callable[[str], None], at: str = "") -> str:
    """Return a document as the site has it; `follow` is called with each path that it links to.

    Its links lead from its own place, or from `at`.
    """

    def replaced(match: re.Match[str]) -> str:
        link = match[1]
        if ":" in link:
            return link
        to = beside(at or path, unquote(link))
        assert (root / to).exists(), f"{path} links to {link}, which does not exist"
        follow(to)
        return on_site(root, to, link)

    parts = re.split(r"(^```.*?^```$)", (root / path).read_text(), flags=re.M | re.S)
    return "".join(part if part.startswith("```") else pipes(LINK.sub(replaced, part)) for part in parts)


def pipes(text: str) -> str:
    """Write a pipe within code in a table as Python-Markdown reads it; GitHub wants it escaped."""
    return re.sub(r"(?<!`)`[^`\n]+`(?!`)", lambda code: code[0].replace("\\|", "|"), text)


def on_site(root: Path, path: str, link: str) -> str:
    """Return the link to a file or folder of the repository: to its page."""
    if (root / path).is_dir():
        return f"{link.rstrip('/')}/README.md"
    if path in MOVED:
        return link.removesuffix(path) + MOVED[path]
    return link if Path(path).suffix in {".md", *IMAGES} else f"{link}.md"


def listing(root: Path, path: str, follow: Callable[[str], None]) -> str:
    """Return a page that lists what a folder holds."""
    names = sorted(one.name for one in (root / path).iterdir() if not one.name.startswith((".", "__pycache__")))
    for name in names:
        follow(f"{path}/{name}")
    lines = [f"- [{name}]({on_site(root, f'{path}/{name}', name)})" for name in names]
    return "\n".join([f"{HIDDEN}# {path}", "", *lines, ""])


def shown(path: str, text: str) -> str:
    """Return a page that shows a file."""
    language = LANGUAGES.get(Path(path).suffix, "bash" if text.startswith("#!") else "text")
    return f"{HIDDEN}# {path}\n\n````{language}\n{text.rstrip()}\n````\n"


def beside(path: str, link: str) -> str:
    """Return the path in the repository to which a page's relative link leads."""
    return os.path.normpath(Path(path).parent / link)
