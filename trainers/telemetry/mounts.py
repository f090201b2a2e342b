"""Names calls to storage that do not return, and their mounts, without touching any file system but /proc.

A call on a mount whose server does not answer waits in the kernel. On NFS only a signal that kills ends it; on FUSE
(GlusterFS, JuiceFS, s3fs, ...) nothing does, once the client has taken the request. Which state such a thread shows
(proc(5): D or S) differs between file systems, so threads are told by the file that their call names.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

LONGEST_PATH = 4096  # PATH_MAX of linux/limits.h
ESCAPES = {r"\040": " ", r"\011": "\t", r"\012": "\n", r"\134": "\\"}  # proc(5), mountinfo


class Mount(NamedTuple):
    """A mounted file system, as the kernel lists it."""

    point: str
    kind: str
    source: str

    def __str__(self) -> str:
        return f"{self.point} ({self.kind}, {self.source})"


def mount_of(path: Path | str, table: Path = Path("/proc/self/mountinfo")) -> Mount | None:
    """The mount that a path lies on, by its name alone; links are not followed, since that would ask the storage."""
    wanted, best = str(Path(path).absolute()), None
    for line in table.read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        kind, source = rest.split()[:2]
        mount = Mount(_plain(fields.split()[4]), kind, _plain(source))
        inside = wanted == mount.point or wanted.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount  # of two at one place the later one is on top
    return best


def blocked_files() -> dict[int, str]:
    """Files in whose calls threads of this process wait in the kernel just now, by thread."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            call = (task / "syscall").read_text().split()  # `running`, or number and arguments
            if path := _file_of([int(argument, 16) for argument in call[1:3]]):
                found[int(task.name)] = path
    return found


def _file_of(arguments: list[int]) -> str:
    """The file that a call's first two arguments name: the first as an open file, or either as a path; "" if none."""
    for descriptor in arguments[:1]:
        with contextlib.suppress(OSError, OverflowError):
            name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
            return name if name.startswith("/") and not name.startswith("/dev/") else ""  # else a socket, a terminal
    for address in arguments:
        # read through the kernel: a number that is no address is then an error and not a crash
        with contextlib.suppress(OSError, OverflowError), Path("/proc/self/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            text = (memory.read(LONGEST_PATH) or b"").partition(b"\0")[0]
            if len(text) > 1 and text.startswith(b"/"):
                return os.fsdecode(text)
    return ""


def describe(path: str, seconds: float) -> str:
    """One phrase for people about a call that does not return."""
    mount = mount_of(path)
    return f"{path} on the mount {mount or 'of an unknown file system'} has not answered for {seconds:.0f} s"


def _plain(text: str) -> str:
    for escape, character in ESCAPES.items():
        text = text.replace(escape, character)
    return text
