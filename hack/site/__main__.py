"""Build the documents' site: `python -m hack.site [FOLDER]`, by default build/site. A broken link is an error.

REPOSITORY=https://... is the address that its links to the repository lead to (hack/site/repository.py).
"""

import logging
import os
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")  # Material prints it at its import

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from pymdownx.slugs import slugify

from hack.site import repository
from hack.site.pages import INDEX, lay_out, navigation

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HEADINGS = {"toc": {"permalink": True, "slugify": slugify(case="lower")}}  # anchors as GitHub has them
EXTENSIONS = [
    HEADINGS,
    "tables",
    "hack.site.tables:LabelledTables",
    "sane_lists",
    {"pymdownx.highlight": {"pygments_lang_class": True}},
    "pymdownx.superfences",
]
ICON = "charts/trainyard/icon.svg"


def links(address: str) -> dict[str, str]:
    """Return the settings of the links to the repository and to a page's source there; none without an address."""
    if not address:
        return {}
    return {"repo_url": address, "repo_name": "/".join(address.split("/")[-2:]), "edit_uri": "edit/main/"}


def settings(pages: Path, out: Path) -> dict[str, Any]:
    """Return what mkdocs.yml does not say: folders, navigation, version, repository."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    commit = repository.commit(ROOT)
    return {
        "site_name": f"trainyard {version}",
        "copyright": f"trainyard {version}{commit and f', commit {commit}'}, Apache-2.0",
        "docs_dir": str(pages),
        "site_dir": str(out),
        "nav": navigation((ROOT / INDEX).read_text()),
        "markdown_extensions": EXTENSIONS,
        **links(repository.address(ROOT)),
    }


def main(arguments: list[str]) -> int:
    """Lay the pages out and build the site; returns 1 where a link leads nowhere."""
    logging.basicConfig(level=logging.WARNING, format="site: %(message)s")  # what a broken link is
    out = Path(arguments[0] if arguments else ROOT / "build" / "site").resolve()
    with tempfile.TemporaryDirectory() as work:
        pages = Path(work) / "pages"
        lay_out(ROOT, pages)
        shutil.copy(HERE / "site.css", pages)
        shutil.copy(ROOT / ICON, pages / "icon.svg")
        config = load_config(str(HERE / "mkdocs.yml"), **settings(pages, out))
        try:
            build(config)
        except Abort as error:
            print(f"site: {error}", file=sys.stderr)
            return 1
    print(f"site: {out}/index.html; with search: python3 -m http.server -b 127.0.0.1 -d {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
