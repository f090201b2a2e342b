"""Which files a change consists of: the working tree, new files too, against where the branch left its upstream."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def git(*words: str) -> str:
    """Return what git prints; raises CalledProcessError."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def base(asked: str = "") -> str:
    """Return the commit to compare with: the one asked for, else the merge base with the upstream branch.

    Where there is no upstream, or nothing that it lacks, the last commit alone counts beside what is not committed.
    Raises CalledProcessError for a revision that is none.
    """
    if asked:
        return git("rev-parse", "--verify", f"{asked}^{{commit}}")
    for upstream in ("@{upstream}", "origin/HEAD", "origin/main"):
        try:
            found = git("merge-base", "HEAD", upstream)
        except subprocess.CalledProcessError:
            continue
        if found != git("rev-parse", "HEAD") or changed(found):
            return found
    return "HEAD" if changed("HEAD") else "HEAD~1"


def changed(since: str) -> list[str]:
    """Return the files that differ from a commit: also those that are gone, and new ones that git does not ignore."""
    differ = git("diff", "--name-only", "--no-renames", "-z", since, "--").split("\0")
    new = git("ls-files", "--others", "--exclude-standard", "-z").split("\0")
    return sorted({path for path in (*differ, *new) if path})


def tree() -> list[str]:
    """Return all files of the working tree that git does not ignore."""
    listed = git("ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    return sorted({path for path in listed if path and (ROOT / path).is_file()})
