"""The documents' site: all pages are in its navigation, all links lead somewhere, nothing is loaded from elsewhere."""

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from hack.site.pages import INDEX, navigation, page, pipes
from tests import patience
from tests.util.browser import CHROMIUM

pytestmark = pytest.mark.takes(40)

ROOT = Path(__file__).resolve().parents[1]
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
    done = patience.run([sys.executable, "-m", "hack.site", str(out)], cwd=ROOT)
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
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", style.read_text()), style


def test_every_document_is_in_the_navigation() -> None:
    nav = navigation((ROOT / INDEX).read_text())
    listed = [path for section in nav for pages in section.values() for one in pages for path in one.values()]
    assert {str(path.relative_to(ROOT)) for path in DOCUMENTS} <= set(listed)
    assert len(listed) == len(set(listed))
    assert [next(iter(section)) for section in nav] == [
        "Documents", "Start", "How-to", "Operate", "Concepts", "Reference", "Contribute",
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


@pytest.mark.parametrize(
    "name", ["index", "docs/troubleshooting", "docs/reference/trainer-settings", "charts/trainyard/index"]
)
def test_no_page_is_wider_than_a_phone(site: Path, tmp_path: Path, name: str) -> None:
    """Tables and code scroll by themselves."""
    frame = tmp_path / "frame.html"  # no window is as narrow as a phone; a frame is
    frame.write_text(f"""<!doctype html>
<iframe width="390" height="800" src="{(site / name).as_uri()}.html"></iframe><script>
addEventListener("load", () => {{
  const page = document.querySelector("iframe").contentDocument.documentElement;
  document.title = page.scrollWidth + " " + page.querySelectorAll("table, pre").length;
}})</script>""")
    command = [
        *CHROMIUM,
        f"--user-data-dir={tmp_path / 'profile'}",
        "--allow-file-access-from-files",
        "--dump-dom",
        frame.as_uri(),
    ]
    done = patience.run(command)
    title = re.search(r"<title>(\d+) (\d+)</title>", done.stdout)
    assert title, done.stdout[:2000] + done.stderr
    assert int(title[1]) <= 390
    assert int(title[2]) > 5
