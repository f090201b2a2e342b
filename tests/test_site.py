"""The documents' site: all pages are in its navigation, all links lead somewhere, nothing is loaded from elsewhere."""

import json
import os
import re
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from hack.site.__main__ import links
from hack.site.pages import INDEX, navigation, page, pipes
from hack.site.repository import web
from tests import patience
from tests.util.browser import CHROMIUM

pytestmark = pytest.mark.takes(40)

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://git.example.com/team/trainyard"
DOCUMENTS = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "reference").glob("*.md"))]


class Page(HTMLParser):
    """The links, the ids and the loaded addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        self.ids |= {found[key] for key in ("id", "name") if key in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag in ("script", "img", "iframe") and "src" in found:
            self.loaded.append(found["src"])
        elif tag == "link" and "href" in found:
            self.loaded.append(found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "site"
    done = patience.run(
        [sys.executable, "-m", "hack.site", str(out)], cwd=ROOT, env={**os.environ, "REPOSITORY": REPOSITORY}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_link_and_anchor_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    broken, followed = [], 0
    for path, found in pages.items():
        for link in [*found.links, *found.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            to = to / "index.html" if to.is_dir() else to
            followed += 1
            missing = not to.exists() or (
                parts.fragment and unquote(parts.fragment) not in pages[to].ids | {"__search"}
            )
            if missing:
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken
    assert followed > 1000


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    assert [one for found in pages.values() for one in found.loaded if urlsplit(one).netloc] == []
    assert 'data-md-component="source"' not in (site / "index.html").read_text()  # it asks the repository's server
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", style.read_text()), style


def test_every_document_is_in_the_navigation() -> None:
    nav = navigation((ROOT / INDEX).read_text())
    listed = [path for section in nav for pages in section.values() for one in pages for path in one.values()]
    assert {str(path.relative_to(ROOT)) for path in DOCUMENTS} <= set(listed)
    assert len(listed) == len(set(listed))
    assert [next(iter(section)) for section in nav] == [
        "Home", "Start", "How-to", "Operate", "Concepts", "Reference", "Contribute",
    ]  # fmt: skip


def test_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("[b](b.md)")
    with pytest.raises(AssertionError, match=r"a\.md links to b\.md"):
        page(tmp_path, "a.md", print)


def test_files_and_folders_become_pages_and_code_stays(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text("a: 1")
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.md").write_text(
        "[v](values.yaml#L1) [f](folder) [w](https://example.com/x)\n```text\n[v](values.yaml)\n```\n"
    )
    followed: list[str] = []
    assert page(tmp_path, "a.md", followed.append) == (
        "[v](values.yaml.md#L1) [f](folder/README.md) [w](https://example.com/x)\n```text\n[v](values.yaml)\n```\n"
    )
    assert followed == ["values.yaml", "folder"]
    assert pipes(r"| `a\|b` | c\|d |") == r"| `a|b` | c\|d |"


def test_search_finds_pages_and_not_the_files_they_show(site: Path) -> None:
    found = {one["location"] for one in json.loads((site / "search" / "search_index.json").read_text())["docs"]}
    assert {"docs/reference/trainer-settings.html#optimizer", "docs/kueue.html#preemption"} <= found
    assert not [one for one in found if one.startswith("examples/one-node.yaml")]
    assert (site / "examples" / "one-node.yaml.html").exists()


def test_the_front_page_leads_to_the_others_and_is_not_readme(site: Path, pages: dict[Path, Page]) -> None:
    assert {"docs/first-model.html", "docs/evidence.html", "docs/index.html", "overview.html"} <= {
        link.partition("#")[0] for link in pages[site / "index.html"].links
    }
    for words in ("Works with", "What happens when"):
        assert words in (site / "overview.html").read_text()
        assert f"<h2>{words}" not in (site / "index.html").read_text()
        assert f'id="{words.lower().replace(" ", "-")}"' not in (site / "index.html").read_text()


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("index", "hack/site/home.md"),
        ("overview", "README.md"),
        ("docs/kueue", "docs/kueue.md"),
        ("docs/index", "docs/README.md"),
        ("docs/reference/values", None),
        ("examples/one-node.yaml", None),
    ],
)
def test_a_page_leads_to_its_source_in_the_repository(pages: dict[Path, Page], site: Path, name: str, source: str):
    found = pages[site / f"{name}.html"].links
    assert REPOSITORY in found
    edits = [link for link in found if "/edit/" in link]
    assert edits == ([f"{REPOSITORY}/edit/main/{source}"] if source else [])


def test_pages_say_the_version(site: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"<title>Runs in a queue - trainyard {version}</title>" in (site / "docs/kueue.html").read_text()


def test_no_address_is_invented() -> None:
    assert web("/srv/git/trainyard") == ""
    assert web("git@git.example.com:team/trainyard.git") == REPOSITORY
    assert web("ssh://git@git.example.com/team/trainyard.git") == REPOSITORY
    assert web(f"{REPOSITORY}.git") == REPOSITORY
    assert links("") == {}


def test_cells_say_their_column(site: Path) -> None:
    text = (site / "docs/troubleshooting.html").read_text()
    assert text.count('<td data-label="what to do">') > 50


# Pages, and how many tables and blocks of code each has at least
WIDE = {
    "index": 3, "overview": 6, "docs/troubleshooting": 6, "docs/reference/trainer-settings": 6,
    "charts/trainyard/index": 6, "docs/compatibility": 1, "docs/air-gapped": 6,
}  # fmt: skip


@pytest.fixture(scope="module")
def measured(site: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """What one Chromium measures of each page, in a frame as wide as a phone and one as wide as a desktop."""
    folder = tmp_path_factory.mktemp("frames")
    frames = [
        f'<iframe width="{width}" height="800" src="{(site / name).as_uri()}.html"></iframe>'
        for name in WIDE
        for width in (390, 1280)
    ]
    (folder / "frames.html").write_text(f"""<!doctype html>
{"".join(frames)}<script>
const style = element => element.ownerDocument.defaultView.getComputedStyle(element);
const measure = pair => {{
  const page = pair[0].contentDocument.documentElement;
  const room = [...page.querySelectorAll("pre")].map(pre => parseFloat(style(pre).paddingRight));
  const rows = [...page.querySelectorAll(".md-typeset table tbody tr")].filter(row => style(row).display != "block");
  const empty = [...page.querySelectorAll(".md-typeset table td:empty")].filter(cell => style(cell).display != "none");
  const blocks = pair.flatMap(frame =>
    [...frame.contentDocument.querySelectorAll(":is(.language-bash, .language-text) code")]);
  const cut = blocks.filter(code => code.scrollWidth > code.clientWidth + 1);
  const small = [...page.querySelectorAll("p > img:only-child")].filter(image => image.clientWidth < 700);
  return [page.scrollWidth, page.querySelectorAll("table, pre").length, Math.min(99, ...room), rows.length,
    empty.length, cut.length, small.length];
}};
addEventListener("load", () => {{
  const all = [...document.querySelectorAll("iframe")];
  document.title = JSON.stringify(all.flatMap((frame, at) => at % 2 ? [] : [measure([frame, all[at + 1]])]));
}})</script>""")
    options = [f"--user-data-dir={folder / 'profile'}", "--allow-file-access-from-files", "--dump-dom"]
    done = patience.run([*CHROMIUM, *options, (folder / "frames.html").as_uri()])
    title = re.search(r"<title>(\[\[.*\]\])</title>", done.stdout)
    assert title, done.stdout[:2000] + done.stderr
    return dict(zip(WIDE, json.loads(title[1]), strict=True))


@pytest.mark.parametrize("name", WIDE)
def test_no_page_is_wider_than_a_phone(measured: dict[str, list[float]], name: str) -> None:
    """Code scrolls by itself or wraps, a table's rows are blocks without empty cells, and no text lies below a button.

    Commands and output wrap in wide windows, too: nothing is cut off. A figure scrolls, so its text is large.
    """
    width, tables, room, *none = measured[name]
    assert width <= 390
    assert tables >= WIDE[name]
    assert room >= 36
    assert none == [0, 0, 0, 0]
