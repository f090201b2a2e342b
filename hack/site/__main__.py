"""Build the documents' site: `python -m hack.site [FOLDER]`, by default build/site. A broken link is an error."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")  # Material prints it at its import

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from pymdownx.slugs import slugify

from hack.site.pages import INDEX, lay_out, navigation

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HEADINGS = {"toc": {"permalink": True, "slugify": slugify(case="lower")}}  # anchors as GitHub has them
EXTENSIONS = [HEADINGS, "tables", "sane_lists", "pymdownx.highlight", "pymdownx.superfences"]


def main(arguments: list[str]) -> int:
    """Lay the pages out and build the site; returns 1 where a link leads nowhere."""
    out = Path(arguments[0] if arguments else ROOT / "build" / "site").resolve()
    with tempfile.TemporaryDirectory() as work:
        pages = Path(work) / "pages"
        lay_out(ROOT, pages)
        shutil.copy(HERE / "site.css", pages)
        config = load_config(
            str(HERE / "mkdocs.yml"),
            docs_dir=str(pages),
            site_dir=str(out),
            nav=navigation((ROOT / INDEX).read_text()),
            markdown_extensions=EXTENSIONS,
        )
        try:
            build(config)
        except Abort as error:
            print(f"site: {error}", file=sys.stderr)
            return 1
    print(f"site: {out}/index.html; with search: python3 -m http.server -b 127.0.0.1 -d {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
