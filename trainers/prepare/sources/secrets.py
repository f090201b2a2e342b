"""Where credentials are found: the environment, or the folder of mounted secrets. Never argv, never the settings."""

import os
from pathlib import Path


def folder(which: str) -> Path:
    """Return the folder in which a secret's keys are files."""
    return Path(os.environ.get("TRAINYARD_SECRETS", "/etc/trainyard/secrets")) / which


def read(path: Path) -> str | None:
    """Return a small file's text, or nothing."""
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
