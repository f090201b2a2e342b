"""The prose linter reads comments and strings of Python, documents and no code; each rule finds what it is for."""

import subprocess
import sys

import pytest

from hack.prose.__main__ import HERE, prose
from tests.documents import ROOT

pytestmark = pytest.mark.takes(5)

SOURCE = '''picture = load("picture", mended)  # a comment that stays


def whoever(mend):
    """Say what
    whoever reads."""
    return f"the processor {mend} is mended"
'''


@pytest.fixture(scope="module")
def vale() -> str:
    done = subprocess.run([ROOT / "hack/prose/build"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_of_python_comments_and_strings_are_left_at_their_places() -> None:
    lines = prose(SOURCE).splitlines()
    assert lines[0] == "# a comment that stays".rjust(len(SOURCE.splitlines()[0]))
    assert lines[1:4] == ["", "", ""]
    assert lines[4:6] == ['    """Say what', '    whoever reads."""']
    assert "whoever(mend)" not in prose(SOURCE)
    assert "the processor" in lines[6]
    assert prose('content = b"not a picture"\n').strip() == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Two processors read it.", "Words:write 'CPU', not 'processors'"),
        ("It writes a image.", "Words:write 'an', not 'a'"),
        ("The fault was mended.", "Words:write 'fix', not 'mended'"),
        ("A folder of pictures.", "Images:write 'image', not 'pictures'"),
        ("For whoever has a GPU.", "Readers:say who it is"),
        ("Simply run it.", "Padding:leave out 'Simply'"),
        ("The message names the key.", "Reports:write 'reports', not 'names'"),
        ("Run the the tests.", "Repetition:'the' twice"),
        (f"It is {'very ' * 40}, {'so ' * 2}{'much ' * 30}long.", "Length:split this sentence"),
    ],
)
def test_each_rule_finds_what_it_is_for(vale: str, tmp_path, text: str, said: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{text}\n\n```text\nFor whoever mends pictures.\n```\n")
    command = [vale, "--config", str(HERE / "vale.ini"), "--output", "line", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"trainyard.{said}" in done.stdout
    assert {line.split(":")[1] for line in done.stdout.splitlines()} == {"3"}


def test_the_repository_is_clean(vale: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hack.prose", vale], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
