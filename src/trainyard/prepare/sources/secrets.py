"""Where credentials are found: the environment, or the folder of mounted secrets. Never argv, never the settings."""

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from trainyard.core.exits import UserError


def folder(which: str) -> Path:
    """Return the folder in which a secret's keys are files."""
    return Path(os.environ.get("TRAINYARD_SECRETS", "/etc/trainyard/secrets")) / which


@dataclass(frozen=True)
class Signed:
    """Where the Secret of web servers holds signed addresses: each source has a key of its own.

    `setting` names the address without its signature. Where a person set it and the key holds only others, one of both
    is a mistake; `strict` is false for an address that nobody set.
    """

    key: str
    setting: str
    strict: bool = True


DATASET = Signed("url", "source.url")


def signed_address(url: str, signed: Signed = DATASET) -> str:
    """Return the signed address that the Secret of web servers holds for this one, one a line, else the address itself.

    The file is read anew at each call: a Secret can be renewed while a preparation reads. Raises UserError.
    """
    path = folder("http") / signed.key
    found = (read(path) or "").split()
    for address in found:
        if _unsigned(address) == _unsigned(url):
            return address
    if found and signed.strict:
        raise UserError(
            f"{path} holds the address of something else than {signed.setting}: give {signed.setting} the same address "
            "without what follows its ?, so that the settings say where it is from"
        )
    return url


def _unsigned(url: str) -> SplitResult:
    return urlsplit(url)._replace(query="", fragment="")


def read(path: Path) -> str | None:
    """Return a small file's text, or nothing."""
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
