"""Machines that lack what most have: `python -m odd_places PLACE MODULE ...` runs a module there.

A place is made of namespaces and limits of this one process, so nothing outside sees it. KEPT names a folder that can
be written where little else can.
"""

import ctypes
import os
import resource
import runpy
import sys
import tempfile
from pathlib import Path

NEWNS, NEWUSER = 0x20000, 0x10000000  # linux/sched.h
RDONLY, REMOUNT, BIND, REC, PRIVATE = 1, 32, 4096, 16384, 1 << 18  # linux/mount.h
STRANGER = 123456  # has no entry in /etc/passwd
UNABLE = 96  # exit code: no namespaces can be made here
LIBC = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int, uid: int) -> None:
    """Enter new namespaces, of users as `uid`."""
    was = os.getuid(), os.getgid()
    if LIBC.unshare(flags | NEWUSER):
        os._exit(UNABLE)
    maps = {"setgroups": "deny", "uid_map": f"{uid} {was[0]} 1", "gid_map": f"{uid} {was[1]} 1"}
    try:
        for name, content in maps.items():
            Path("/proc/self", name).write_text(content)
    except PermissionError:  # Ubuntu's AppArmor lets users make a namespace, and do nothing there
        os._exit(UNABLE)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = [word.encode() for word in (source, target, kind)]
    if LIBC.mount(*words, flags, options.encode()):
        print(f"mount {target}: {os.strerror(ctypes.get_errno())}", file=sys.stderr, flush=True)
        os._exit(UNABLE)


def own_mounts() -> None:
    unshare(NEWNS, 0)
    mount("none", "/", "", REC | PRIVATE)


def stranger() -> None:
    """A user without an entry in /etc/passwd, and without HOME."""
    unshare(0, STRANGER)
    for name in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "TRAINYARD_CACHE"):
        os.environ.pop(name, None)


def without_shm() -> None:
    """Only few devices, and no /dev/shm."""
    own_mounts()
    few = tempfile.mkdtemp(dir=os.environ["KEPT"])
    mount("none", few, "tmpfs", 0)
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        Path(few, name).touch()
        mount(f"/dev/{name}", f"{few}/{name}", "", BIND)
    mount(few, "/dev", "", BIND | REC)


def tiny_shm() -> None:
    own_mounts()
    mount("none", "/dev/shm", "tmpfs", 0, "size=4k")


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (6, 6))


def read_only() -> None:
    """Nothing can be written but KEPT, not even /tmp."""
    own_mounts()
    mount(os.environ["KEPT"], os.environ["KEPT"], "", BIND | REC)
    for place in ("/", "/tmp"):
        if os.path.ismount(place):
            mount("none", place, "", BIND | REMOUNT | RDONLY)


def full_tmp() -> None:
    """TMPDIR is a volume without room, and /tmp, /var/tmp and the directory cannot be written; a locale is missing."""
    read_only()
    folder = tempfile.mkdtemp(dir=os.environ["KEPT"])
    mount("none", folder, "tmpfs", 0, "size=4k")
    Path(folder, "full").write_bytes(bytes(4096))
    os.environ["TMPDIR"] = folder
    os.environ["LC_ALL"] = os.environ["LANG"] = "xx_XX.UTF-8"


def missing_tmp() -> None:
    """TMPDIR and HOME are folders that are not there, as images for other users than root have them."""
    read_only()
    os.environ["TMPDIR"] = "/nowhere"
    os.environ["HOME"] = "/nonexistent"
    os.environ.pop("TRAINYARD_CACHE", None)


def plain_locale() -> None:
    os.environ["LC_ALL"] = "C"
    os.environ["PYTHONUTF8"] = "0"


if __name__ == "__main__":
    _, place, module, *words = sys.argv
    globals()[place]()
    tempfile.tempdir = None  # where this process was forked, it knows one already
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
