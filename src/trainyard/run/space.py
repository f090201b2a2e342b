"""The words for a run directory that cannot be written.

Of a volume that is full: which file, how much is free there, what is left of the run, what to do.
"""

import errno
import shutil
from pathlib import Path

from trainyard.core.exits import FULL, STORAGE, Exit, ExitError, UserError, explain_permissions
from trainyard.core.storage import StorageError
from trainyard.run import checkpoint


def unwritable(path: Path, error: OSError) -> UserError | ExitError:
    """Return the error for a run directory that cannot be written."""
    if error.errno in FULL:
        return ExitError(no_space(error, path), Exit.FAILED)
    if error.errno in STORAGE:
        return StorageError(f"run.dir = {str(path)!r}: {error.strerror}: the storage does not answer")
    denied = error.errno in (errno.EACCES, errno.EPERM)
    remedy = explain_permissions(path) if denied else "check that it lies on a writable volume with free space"
    return UserError(f"run.dir = {str(path)!r}: cannot be written ({error.strerror}); {remedy}")


def no_space(error: OSError, run: Path) -> str:
    """Return what an error means by which a volume says that it is full; `run` is the run directory. Never raises."""
    path = Path(str(error.filename)) if error.filename else run
    reason = f"{path} cannot be written: {error.strerror or error} ({_free(path)})"
    if not path.is_relative_to(run):
        return f"{reason}; make room there, then start again"
    return (
        f"{reason}; {_left(run)}. Make room there, enlarge the claim or its quota, or lower checkpoint.keep_last, then "
        "start again"
    )


def free(folder: Path) -> int | None:
    """Bytes that are free where a folder is, or was to be made; None where that cannot be told. Never raises."""
    for place in (folder, *folder.parents):
        try:
            return shutil.disk_usage(place).free
        except FileNotFoundError:
            continue
        except OSError:
            break
    return None


def _free(path: Path) -> str:
    found = free(path.parent)
    return "how much is free cannot be told" if found is None else f"{found / 1e6:,.1f} MB free there"


def _left(run: Path) -> str:
    try:
        saved = checkpoint.steps(run / "checkpoints")
    except (ExitError, UserError):
        return "its checkpoints cannot be listed"
    return f"the last checkpoint, {saved[-1].name}, is whole" if saved else "there is no checkpoint yet"
