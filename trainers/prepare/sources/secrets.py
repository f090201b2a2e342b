"""Where credentials are found: the environment, or the folder of mounted secrets. Never argv, never the settings."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from trainers.exits import UserError


def folder(which: str) -> Path:
    """Return the folder in which a secret's keys are files."""
    return Path(os.environ.get("TRAINYARD_SECRETS", "/etc/trainyard/secrets")) / which


def signed_address(url: str) -> str:
    """Return the signed address that the Secret of web servers holds for this one, else the address itself.

    The file is read anew at each call: a Secret can be renewed while a preparation reads. Raises UserError.
    """
    path = folder("http") / "url"
    signed = read(path)
    if signed is None:
        return url
    if urlsplit(signed)._replace(query="", fragment="") != urlsplit(url)._replace(query="", fragment=""):
        raise UserError(
            f"{path} holds the address of something else than source.url: give source.url the same address without "
            "what follows its ?, so that the dataset says where it is from"
        )
    return signed


def read(path: Path) -> str | None:
    """Return a small file's text, or nothing."""
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
