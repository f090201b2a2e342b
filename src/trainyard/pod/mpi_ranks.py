"""The ranks of an MPIJob's worker: the environment that they get, and which processes they are."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from trainyard.core.exits import UserError

MARK = "TRAINYARD_MPI_ENVIRONMENT"  # names the environment file; also marks a worker's own daemons and ranks
DAEMONS = ("orted", "prted")
RANK = "OMPI_COMM_WORLD_RANK"
NOT_TAKEN_ON = frozenset({"SSH_CLIENT", "SSH_CONNECTION", "SSH_ORIGINAL_COMMAND"})


def write_environment(path: Path, environment: dict[str, str]) -> None:
    """Keep the environment in a file that only this user can read; values may hold anything but a zero byte."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items()))
    new.replace(path)


def read_environment(path: Path) -> dict[str, str]:
    """Return the environment that `write_environment` stored."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"no environment of a worker in {path} ({error.strerror}): is `worker` running here?") from None
    pairs = (os.fsdecode(entry).partition("=") for entry in content.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def take_on_environment(path: Path) -> None:
    """Replace this process's environment by the worker's."""
    environment = {name: value for name, value in read_environment(path).items() if name not in NOT_TAKEN_ON}
    os.environ.clear()
    os.environ.update(environment | {MARK: str(path)})


def processes() -> Iterator[tuple[int, int, str, bool]]:
    """Process id, parent and name of all processes that can be seen, and whether one leads a group, but no session."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
                parent, group, session = map(int, rest.split()[1:4])
                yield int(entry.name), parent, name, int(entry.name) == group != session


def find(environment: Path) -> set[int]:
    """Return the ranks of this worker: children of daemons that were started with its environment, and those they left.

    A rank that is no MPI program, or has not begun as one, goes on when its daemon is killed. The daemon has made it
    the leader of a group in its own session; what a rank starts is in its group, or in a session where it shall go on.
    """
    everything = list(processes())
    mark = f"{MARK}={environment}\0"
    daemons = {pid for pid, _, name, _ in everything if name in DAEMONS and holds(pid, mark)}
    left = {
        pid
        for pid, parent, _, leads in everything
        if leads and holds(pid, mark) and holds(pid, f"{RANK}=") and not holds(parent, f"{RANK}=")
    }
    return left | {pid for pid, parent, _, _ in everything if parent in daemons}


def holds(pid: int, start: str) -> bool:
    """Whether a process was started with a variable that starts so; each ends with a zero byte."""
    with contextlib.suppress(OSError):
        return os.fsencode(f"\0{start}") in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    return False


def reap() -> dict[int, int]:
    """Collect children that ended, orphans too since this is the pod's first process; their exit codes by id."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended
