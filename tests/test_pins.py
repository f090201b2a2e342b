"""The check that all that is fetched is pinned: each rule broken once, and the tree itself."""

import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from hack.pins import __main__ as pins
from hack.pins import dockerfiles, installs, locks, workflows
from hack.pins.problems import Problem

ROOT = Path(__file__).resolve().parents[1]
COMMIT, DIGEST = "0123456789" * 4, f"@sha256:{'0123456789abcdef' * 4}"
HASH = f"sha256:{'0123456789abcdef' * 4}"


def said(problems: Iterable[Problem]) -> list[tuple[int, str, str]]:
    return [tuple(problem) for problem in problems]


def test_the_tree_has_no_pin_without_a_digest_or_a_reason() -> None:
    missing = [f"{path}:{one.line}: {one.what}" for path, one in pins.check(ROOT, pins.tracked(ROOT)) if not one.reason]
    assert missing == []


# What a change could do to a file of the tree, and what is then said of it
CHANGES = {
    ".github/workflows/ci.yaml": (r"(actions/cache)@[0-9a-f]{40}", r"\1@v4", "the action actions/cache@v4"),
    "images/pytorch/Dockerfile": (r"(BASE_IMAGE=\S+)@sha256:\w+", r"\1", "the image nvcr.io/nvidia/pytorch:"),
    "images/base/Dockerfile": (r"--require-hashes --only-binary", "--only-binary", "pip fetches"),
    "images/horovod/build-wheel": ("--require-hashes -d", "-d", "pip fetches without --require-hashes"),
    "images/horovod/source.txt": (r"--hash=\S+", "", "horovod has no hash"),
    "images/requirements.txt": (r"(?m)^(wrapt==.*?)( \\\n *--hash=\S+)+", r"\1", "wrapt has no hash"),
    "uv.lock": (r', hash = "sha256:\w+"', "", "has no hash of"),
    "hack/programs/go.sum": (r"(?m)^helm.sh/helm/v3 v\S+/go.mod .*\n", "", "helm.sh/helm/v3"),
}


@pytest.mark.parametrize("path", CHANGES)
def test_a_pin_that_is_taken_away_is_missed(tmp_path: Path, path: str) -> None:
    pattern, replacement, words = CHANGES[path]
    of = "hack/programs/go.mod" if path.endswith("go.sum") else path
    for name in {path, of}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    assert list(pins.check(tmp_path, [of])) == []
    text, count = re.subn(pattern, replacement, (tmp_path / path).read_text(), count=1)
    assert count == 1
    (tmp_path / path).write_text(text)
    found = list(pins.check(tmp_path, [of]))
    assert found
    assert all(name == of and words in problem.what for name, problem in found)


def test_actions_are_named_by_commits_and_their_versions() -> None:
    text = f"""\
jobs:
  one:
    uses: owner/name/.github/workflows/x.yaml@{COMMIT} # v1.2
  two:
    container: debian:12
    services: {{store: {{image: "redis{DIGEST}"}}}}
    steps:
      - uses: ./.github/actions/own
      - uses: owner/name@{COMMIT}
      - uses: owner/name@{COMMIT[:39]} # v1.2
      - uses: docker://alpine:3
      # not pinned: it is ours
      - uses: owner/ours@main
      - {{run: "make x", with: {{uses: owner/name@main}}}}
"""
    assert said(workflows.check(text)) == [
        (5, "the image debian:12 is not named by its digest", ""),
        (9, f"no comment behind owner/name@{COMMIT} names its version", ""),
        (10, f"the action owner/name@{COMMIT[:39]} is not named by a commit of 40 digits", ""),
        (11, "the image alpine:3 is not named by its digest", ""),
        (13, "the action owner/ours@main is not named by a commit of 40 digits", "it is ours"),
        (14, "the action owner/name@main is not named by a commit of 40 digits", ""),
    ]


def test_a_workflow_fetches_nothing_without_hashes(tmp_path: Path) -> None:
    path = ".github/workflows/x.yaml"
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(
        "jobs:\n  one:\n    steps:\n      - run: pip install ruff\n      - run: |\n          cd x\n"
        "          python -m pip install --require-hashes -r x.txt\n"
    )
    assert [(name, one.line) for name, one in pins.check(tmp_path, [path])] == [(path, 4)]


def test_images_are_named_by_digests_in_variables_too() -> None:
    text = f"""\
ARG GOOD=debian:12{DIGEST}
ARG BAD=debian:12
# not pinned: built on this machine
ARG OWN=localhost/base:1
FROM ${{GOOD}} AS first
ARG BAD=debian:12{DIGEST}
FROM --platform=linux/amd64 $BAD AS second
FROM ${{OWN}}
FROM ${{UNKNOWN:-ubuntu:24.04}}
FROM First
FROM scratch
COPY --from=second --from=0 /a /b
# not pinned: a comment for the line below it alone

COPY \\
  # a comment
  --from=busybox:1 /a /b
RUN --mount=type=bind,from=golang:1,source=/a make
"""
    assert said(dockerfiles.check(text)) == [
        (7, "the image debian:12 is not named by its digest", ""),
        (8, "the image localhost/base:1 is not named by its digest", "built on this machine"),
        (9, "the image ubuntu:24.04 is not named by its digest", ""),
        (15, "the image busybox:1 is not named by its digest", ""),
        (18, "the image golang:1 is not named by its digest", ""),
    ]


@pytest.mark.parametrize(
    "command",
    [
        "pip install -r requirements.txt",
        "python -m pip install x==1",
        '"$python" -m pip download --no-deps x',
        '"${pip[@]}" install uv',
        'uv pip install "$wheel"',
        "pip wheel --no-deps .",
        "pip install --no-deps x # --require-hashes",
        "pip3 --quiet install \\\n  x",
    ],
)
def test_pip_compares_hashes(command: str) -> None:
    begin = "set -e\n# pip install in a comment\ntrue --require-hashes && "
    assert [(one.line, one.reason) for one in installs.check(f"{begin}{command} && true --require-hashes\n")] == [
        (3, "")
    ]
    (allowed,) = installs.check(f"# not pinned: a trial\n{command}\n")
    assert allowed.reason == "a trial"
    assert not list(
        installs.check(begin + re.sub(r"(install|download|wheel) ", r"\1 --require-hashes ", command, count=1))
    )


@pytest.mark.parametrize(
    "command",
    [
        "pip install --no-index x",
        'pip install --no-deps "$wheel"',
        "pip wheel -q --no-deps --no-build-isolation -w out .",
    ],
)
def test_what_pip_finds_on_this_machine_needs_no_hash(command: str) -> None:
    assert not list(installs.check(command))


@pytest.mark.parametrize(
    ("check", "text", "words"),
    [
        (locks.requirements, f"a==1 \\\n    --hash={HASH}\nb==2 ; python_version < '3'\n", "b has no hash"),
        (locks.requirements, f"a==1 --hash={HASH[:-1]}\n", "a has no hash"),
        (locks.requirements, "# x\nrequests\n", "requests has no version"),
        (locks.requirements, "a @ https://example.com/a.whl\n", "a @ https://example.com/a.whl has no version"),
        (locks.uv, '[[package]]\nname = "a"\nversion = "1"\nsource = {git = "x"}\n', "a 1 has no hash of any file"),
    ],
)
def test_lock_files_have_hashes(check: Callable[[str], Iterable[Problem]], text: str, words: str) -> None:
    assert [problem.what for problem in check(text)] == [words]


def test_replaced_modules_are_compared_too() -> None:
    module = "module own.invalid/x\nrequire a.example/b v1.0.0 // indirect\nreplace a.example/b => c.example/d v2.0.0\n"
    assert list(locks.go(module, "c.example/d v2.0.0/go.mod h1:x=\n")) == []
    assert said(locks.go(module, "a.example/b v1.0.0/go.mod h1:x=\n")) == [
        (2, "c.example/d v2.0.0 has no hash in go.sum", "")
    ]


def test_it_ends_with_an_error_unless_there_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.check_call(["git", "init", "-q"], cwd=tmp_path)
    monkeypatch.setattr(pins, "ROOT", tmp_path)
    (tmp_path / "Dockerfile").write_text("FROM debian:12\n")
    assert pins.main() == 1
    assert "Dockerfile:1: the image debian:12 is not named by its digest\n" in capsys.readouterr().out
    (tmp_path / "Dockerfile").write_text("# not pinned: a trial\nFROM debian:12\n")
    assert pins.main() == 0
    assert "(on record: a trial)" in capsys.readouterr().out
