"""A page's block of `trainyard` commands, each run by a process that has imported torch already."""

import shlex
import string
import sys
from pathlib import Path

from forked import Forker

from tests import documents


def run(
    forker: Forker,
    page: str,
    has: str,
    instead: dict[str, str] | None = None,
    cwd: Path = documents.ROOT,
    **own: str | Path,
) -> str:
    """Run the commands of a block, which must succeed, as bash does; what they printed.

    Arguments are those of `documents.run`. A block may set variables by `export`, and has nothing else of bash.
    """
    env, said = documents.environment(**own), ""
    for line in documents.text(page, has, instead).replace("\\\n", " ").splitlines():
        words = [string.Template(word).substitute(env) for word in shlex.split(line)]
        if words[0] == "export":
            env |= [words[1].split("=", 1)]
            continue
        assert words[0] == "trainyard", line
        done = forker.run([sys.executable, "-m", *words], env=env, cwd=cwd)
        assert done.returncode == 0, f"{page}: {done.stdout}{done.stderr}"
        said += done.stdout
    return said
