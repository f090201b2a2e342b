"""Storage that fails as told: errors of the calls by which a process opens, looks at and reads files."""

import os
import pathlib
from typing import Any

import pytest


def failing(monkeypatch: pytest.MonkeyPatch, name: str, calls: list[str] | None = None) -> list[int]:
    """Make calls on paths with `name` in them fail, each with the first errno of the returned list, while it has any.

    `calls` gets the names of all such calls. Only os.open, os.pread and what pathlib opens and looks at are caught.
    """
    faults: list[int] = []

    def wrap(owner: Any, attribute: str) -> None:
        original = getattr(owner, attribute)

        def wrapped(first: Any, *arguments: Any, **options: Any) -> Any:
            path = str(pathlib.Path(f"/proc/self/fd/{first}").readlink()) if isinstance(first, int) else str(first)
            if name in path:
                if calls is not None:
                    calls.append(attribute)
                if faults:
                    number = faults.pop(0)
                    raise OSError(number, os.strerror(number), path)
            return original(first, *arguments, **options)

        monkeypatch.setattr(owner, attribute, wrapped)

    for owner, attribute in ((os, "open"), (os, "pread"), (pathlib.Path, "open"), (pathlib.Path, "stat")):
        wrap(owner, attribute)
    return faults
