"""The distribution that brings this package: where it is installed from, and what may have spoiled it.

It is `trainyard-kubernetes` and on no index; `trainyard` there is another project's. Both put their files into one
folder `trainyard`, where the one that was installed last overwrites the other's, and uninstalling either breaks both.
"""

import sys
from pathlib import Path

NAME = "trainyard-kubernetes"


def install(extra: str = "") -> str:
    """Return the words for installing this distribution, with an extra, from what cannot be an index."""
    extra = f"[{extra}]" if extra else ""
    return f"`uv tool install '.{extra}'` in a clone of the repository, or './FILE.whl{extra}' of its wheel"


def find_stranger(place: Path = Path(__file__).parents[2]) -> str:
    """Return what is wrong where another distribution, called `trainyard`, has files in this package; empty if none.

    Only one that is installed into the same folder can have changed this package; in a checkout there is none. It is
    not seen where its files are all that runs: its own `trainyard/cli.py`, or an `__init__.py` that fails.
    """
    for record in place.glob("trainyard-*.dist-info/RECORD"):
        if "\ntrainyard/" in f"\n{record.read_text()}":
            return (
                f"{record.parent} is another distribution called trainyard, and its files are mixed with those of "
                f"{NAME}: `{sys.executable} -m pip uninstall trainyard {NAME}`, then {install()}"
            )
    return ""
