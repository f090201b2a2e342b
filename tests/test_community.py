"""Files for those who contribute or ask: their links lead somewhere, and the forms are ones that GitHub takes."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SUPPORT.md", "SECURITY.md")
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """What links may name after #, as GitHub makes it of headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    for link in LINK.findall((ROOT / name).read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = ROOT / path if path else ROOT / name
        assert target.exists(), f"{name}: {link}"
        assert not anchor or anchor in anchors(target), f"{name}: {link}"


def test_those_who_contribute_find_the_pages() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for name in ("CODE_OF_CONDUCT.md", "SUPPORT.md", "SECURITY.md", "CHANGELOG.md", "LICENSE"):
        assert f"({name})" in text, name


@pytest.mark.parametrize("path", [path for path in FORMS if path.name != "config.yml"], ids=lambda path: path.stem)
def test_issue_forms_are_ones_that_github_takes(path: Path) -> None:
    form: dict[str, Any] = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= form.keys() <= {"name", "description", "body", "labels"}
    asked = [one for one in form["body"] if one["type"] != "markdown"]
    ids = [one["id"] for one in asked]
    assert len(set(ids)) == len(ids) > 0
    for one in form["body"]:
        assert one["type"] in ("markdown", "textarea", "input", "checkboxes", "dropdown")
        assert one["attributes"].get("value" if one["type"] == "markdown" else "label")
    assert any(one.get("validations", {}).get("required") for one in asked)


def test_nobody_is_invented() -> None:
    """No address that does not exist: neither of a person nor of a repository."""
    files = [ROOT / name for name in PAGES] + [*FORMS, ROOT / ".github/pull_request_template.md"]
    for path in files:
        assert not re.search(r"[\w.+-]+@[\w-]+\.[a-z]+", path.read_text()), path
        if path.name not in ("README.md", "CONTRIBUTING.md"):
            assert "://" not in path.read_text(), path
