"""Where the site's links to the repository lead: an address that somebody gives, none that is guessed."""

import os
import re
import subprocess
from pathlib import Path

SSH = re.compile(r"(?:ssh://)?git@([^:/]+)[:/](.+)")


def address(root: Path) -> str:
    """Return the repository's web address, or nothing where none is known.

    It is REPOSITORY, else that of the workflow which runs, else that of git's remote `origin` if it is on a server.
    """
    if given := os.environ.get("REPOSITORY"):
        return given.rstrip("/")
    if {"GITHUB_SERVER_URL", "GITHUB_REPOSITORY"} <= os.environ.keys():
        return f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}"
    done = subprocess.run(
        ["git", "-C", str(root), "remote", "get-url", "origin"], capture_output=True, text=True, check=False
    )
    return web(done.stdout.strip())


def web(remote: str) -> str:
    """Return the web address of git's remote; of a folder there is none.

    >>> web("git@github.com:team/trainyard.git")
    'https://github.com/team/trainyard'
    """
    if match := SSH.fullmatch(remote):
        remote = f"https://{match[1]}/{match[2]}"
    return remote.removesuffix(".git") if remote.startswith("https://") else ""


def commit(root: Path) -> str:
    """Return the commit that the site is built from, shortened; nothing outside a checkout."""
    done = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
