"""Words that install this package: `trainyard` on the public index is another project's, and ours is on none."""

import re
import subprocess

import pytest
from conftest import ROOT

from trainyard.core import distribution

INSTALLS = r"\b(?:(?:pip[3x]?|uv tool|uv pip|uv) +(?:install|add|run|wheel|download)|uvx)\b"
NAME = r"trainyard(?:-kubernetes)?"
# by name as a word of such a command, or with an extra anywhere
BY_NAME = re.compile(rf"{INSTALLS}[^\n`;|&#]*[ '\"]{NAME}(?![\w/-])|(?<![\w./-]){NAME}\[(?=\w)")


@pytest.mark.parametrize(
    "text",
    [
        "not installed: pip install 'trainyard[train]'",
        "remedy = 'pip install trainyard, or in a checkout'",
        "pip install --no-index --find-links mirror 'trainyard-kubernetes[train]'",
        "install trainyard[gcs], or use an image that has it",
        "uv tool install trainyard",
        "RUN python3 -m pip install -q --no-cache-dir trainyard==0.0.3",
        "uvx trainyard up",
    ],
)
def test_an_installation_by_name_is_found(text: str) -> None:
    assert BY_NAME.search(text)


def test_nothing_says_to_install_by_name_what_an_index_has_from_another_project() -> None:
    files = subprocess.check_output(["git", "-C", ROOT, "ls-files", "-z"], text=True).split("\0")
    own = ("pyproject.toml", "uv.lock")  # extras of extras: the installer has the distribution in hand
    paths = [ROOT / one for one in files if one and not one.startswith("tests/") and one not in own]
    texts = {path: path.read_bytes().decode(errors="replace") for path in paths if path.is_file()}
    assert {path: match[0] for path, text in texts.items() if (match := BY_NAME.search(text))} == {}


@pytest.mark.parametrize("extra", ["", "train"])
def test_the_words_for_it_name_a_clone_and_a_file(extra: str) -> None:
    said = distribution.install(extra)
    assert not BY_NAME.search(said)
    assert all(word.startswith(".") for word in re.findall(r"'(.*?)'", said))


def test_the_name_is_that_of_the_project() -> None:
    assert f'\nname = "{distribution.NAME}"' in (ROOT / "pyproject.toml").read_text()
