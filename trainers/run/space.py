"""The words for a volume that is full: which file, how much is free there, what is left of the run, what to do."""

import shutil
from pathlib import Path

from trainers.exits import ExitError, UserError
from trainers.run import checkpoint


def no_space(error: OSError, run: Path) -> str:
    """What an error means by which a volume says that it is full; `run` is the run directory. Never raises."""
    path = Path(str(error.filename)) if error.filename else run
    reason = f"{path} cannot be written: {error.strerror or error} ({_free(path)})"
    if not path.is_relative_to(run):
        return f"{reason}; make room there, then start again"
    return (
        f"{reason}; {_left(run)}. Make room there, enlarge the claim or its quota, or lower checkpoint.keep_last, then "
        "start again"
    )


def _free(path: Path) -> str:
    for folder in path.parents:
        try:
            return f"{shutil.disk_usage(folder).free / 1e6:,.1f} MB free there"
        except FileNotFoundError:
            continue
        except OSError:
            break
    return "how much is free cannot be told"


def _left(run: Path) -> str:
    try:
        saved = checkpoint.steps(run / "checkpoints")
    except (ExitError, UserError):
        return "its checkpoints cannot be listed"
    return f"the last checkpoint, {saved[-1].name}, is whole" if saved else "there is no checkpoint yet"
