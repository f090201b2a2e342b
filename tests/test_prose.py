"""The prose linter reads comments and strings of Python, and no code. `hack/lint` runs it on the repository."""

from hack.prose.__main__ import prose

SOURCE = '''picture = load("picture", mended)  # a comment that stays


def whoever(mend):
    """Say what
    whoever reads."""
    return f"the processor {mend} is mended"
'''


def test_of_python_comments_and_strings_are_left_at_their_places() -> None:
    lines = prose(SOURCE).splitlines()
    assert lines[0] == "# a comment that stays".rjust(len(SOURCE.splitlines()[0]))
    assert lines[1:4] == ["", "", ""]
    assert lines[4:6] == ['    """Say what', '    whoever reads."""']
    assert "whoever(mend)" not in prose(SOURCE)
    assert "the processor" in lines[6]
    assert prose('content = b"not a picture"\n').strip() == ""
