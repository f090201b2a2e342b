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
# Numbers of system calls whose first argument is an open file, by machine (Linux's unistd.h): close, read, write and
# their kin, fstat, fstatfs, fsync, fdatasync, ftruncate, getdents
ON_A_FILE = {
    "x86_64": {0, 1, 3, 5, 17, 18, 19, 20, 74, 75, 77, 78, 138, 217, 295, 296},
    "aarch64": {44, 46, 57, 61, 63, 64, 65, 66, 67, 68, 69, 70, 80, 82, 83},
}
# Those of which one of the first two is a path: open, stat, access, rename, mkdir, unlink, statfs, and openat etc.
ON_A_PATH = {
    "x86_64": {2, 4, 6, 21, 82, 83, 84, 87, 89, 137, 257, 258, 262, 263, 264, 269, 316, 332, 439},
    "aarch64": {34, 35, 38, 43, 48, 56, 79, 276, 291, 439},
}
ESCAPES = {r"\040": " ", r"\011": "\t", r"\012": "\n", r"\134": "\\"}  # proc(5), mountinfo


class Mount(NamedTuple):
    """A mounted file system, as the kernel lists it."""

    point: str
    kind: str
    source: str

    def __str__(self) -> str:
        return f"{self.point} ({self.kind}, {self.source})"


def mount_of(path: Path | str, table: Path = Path("/proc/self/mountinfo")) -> Mount | None:
    """Find the mount that a path lies on, by its name alone; following links would ask the storage."""
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
            if call[0].isdigit() and (path := _file_of(int(call[0]), [int(value, 16) for value in call[1:3]])):
                found[int(task.name)] = path
    return found


def _file_of(number: int, arguments: list[int]) -> str:
    """Return the file that a system call of this number and these first arguments is about; "" if none is known."""
    machine = os.uname().machine
    if number in ON_A_FILE.get(machine, ()):
        with contextlib.suppress(OSError):
            name = str(Path(f"/proc/self/fd/{arguments[0]}").readlink())
            return name if name.startswith("/") and not name.startswith("/dev/") else ""  # else a socket, a terminal
    if number in ON_A_PATH.get(machine, ()):
        return next((path for address in arguments if (path := _text_at(address)).startswith("/")), "")
    return ""


def _text_at(address: int) -> str:
    """Get the text at an address of this process, read through the kernel: a wrong address is an error and no crash."""
    with contextlib.suppress(OSError, OverflowError), Path("/proc/self/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return os.fsdecode((memory.read(LONGEST_PATH) or b"").partition(b"\0")[0])
    return ""


def describe(path: str, seconds: float) -> str:
    """One phrase for people about a call that does not return."""
    mount = mount_of(path)
    return f"{path} on the mount {mount or 'of an unknown file system'} has not answered for {seconds:.0f} s"


def _plain(text: str) -> str:
    for escape, character in ESCAPES.items():
        text = text.replace(escape, character)
    return text
