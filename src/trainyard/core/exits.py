"""The end of a process: exit codes, the meaning of errors, and the pod's termination message.

The codes are part of the interface. training-operator's `ExitCode` policy retries codes of 128 and above and gives up
on lower ones, so permanent failures end below 128. CAUSES is the one table that turns an error into a code; docs/
reference/exit-codes.md has the same table for people.
"""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import resource
import signal
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

from trainyard.core import distribution

LAUNCHER = "TRAINYARD_LAUNCHER"  # process id of the launcher, for the processes that it starts
SAID = "TRAINYARD_SAID"  # a file of the launcher, in which its processes note the errors that they have printed
MPI_SESSION = "PMIX_SERVER_TMPDIR"  # a folder of this node's part of an mpirun (OpenMPI), which removes it at its end
FINISHED_FIRST = "checkpoint"  # name of the threads whose work an ending process still lets finish
FINISH_SECONDS = 20.0
PR_SET_PDEATHSIG = 1  # linux/prctl.h
TERMINATION_LOG = "/dev/termination-log"
INPUTS = "inputs"  # in failed.json: the state of what the run reads; the failure is final only while that is the same


CURED_BY_RETRY = 128  # exit codes from here up are retried; lower ones are permanent


class Exit(IntEnum):
    """Exit codes; below 128 a retry does not help, from 128 on it may. No signal's code (128 + N) is above 192."""

    DONE = 0
    FAILED = 1
    CONFIG = 2
    NAN = 77
    INTERRUPTED = 130
    HANG = 138
    STOPPED = 143
    STORAGE = 200
    DEVICE = 201
    CRASHED = 202  # an unknown error, which is tried once more (run/failures.py)


def may_pass_in_place(code: int) -> bool:
    """Whether processes that ended with this code (negative: by a signal) may be started again in the same pod.

    A failed GPU may need another node.
    """
    return (code < 0 or code >= CURED_BY_RETRY) and code != Exit.DEVICE


class UserError(Exception):
    """Wrong configuration or input. The message reports the cause and the remedy; no traceback is shown."""


class InputError(UserError):
    """Input that is missing, refused or broken, which may be fixed without a change of the settings."""


class HostMemoryError(Exception):
    """Memory of the node, pinned for copies to and from a GPU, was not to be had."""


class ExitError(Exception):
    """A run that ends early for a known reason, with the exit code of that reason."""

    def __init__(self, message: str, code: int, details: dict[str, Any] | None = None) -> None:
        super().__init__(message, code, details)
        self.message = message
        self.code = int(code)
        self.details = details or {}

    def __str__(self) -> str:
        return self.message


# Controls but line breaks and tabs, and what reverses the direction of text
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Escape what could steer a terminal: names in an archive are what strangers wrote."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


# How storage says that it does not answer now. What is missing or forbidden (ENOENT, EACCES) is the user's to fix.
STORAGE = {
    errno.ESTALE: "NFS: the server restarted or failed over, and the handle is from before",
    errno.EIO: "the disk, its network or the server behind it failed this time",
    errno.ENOTCONN: "FUSE, GlusterFS, Lustre: the client has lost its server",
    errno.ETIMEDOUT: "NFS mounted soft, CephFS: no answer in time",
    errno.EHOSTDOWN: "CIFS: the server is down",
    errno.EHOSTUNREACH: "the server cannot be reached",
    errno.ENETDOWN: "the node's network is down",
    errno.ENETUNREACH: "the node has no route",
    errno.ECONNREFUSED: "FUSE clients: the server is starting",
    errno.ECONNRESET: "FUSE clients, CIFS: the connection broke",
    errno.ECONNABORTED: "FUSE clients, CIFS: the connection was given up",
    errno.ESHUTDOWN: "CephFS and Lustre: the server evicted this client, which connects again",
    errno.EREMOTEIO: "NFS: the server itself failed to read or write",
    errno.EAGAIN: "busy now",
    errno.EBUSY: "busy now",
    errno.ENOBUFS: "no buffers left in the kernel now",
    errno.ENOLINK: "NFS re-exports: the link to the server is cut",
    errno.EPROTO: "CephFS, FUSE: a broken answer",
}
# Limits of the process and of the node, whichever storage the file is on
LIMITS = {errno.EMFILE: "ulimit -n", errno.ENFILE: "fs.file-max of the node"}
TOO_MANY = "too many open files"
FULL = {errno.ENOSPC: "the volume is full", errno.EDQUOT: "the quota is used up"}


@dataclass(frozen=True)
class Cause:
    """A row of the table: what an error means that has one of the types and, where given, such a text or errno."""

    name: str
    means: str
    code: Exit
    types: tuple[str, ...]  # with their modules, of the error or its bases: nothing is imported to compare them
    says: str = ""  # a regular expression
    errnos: frozenset[int] = frozenset()

    def explains(self, error: BaseException) -> bool:
        """Whether an error is in this row."""
        kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
        return (
            not kinds.isdisjoint(self.types)
            and (not self.says or re.search(self.says, str(error)) is not None)
            and (not self.errnos or getattr(error, "errno", None) in self.errnos)
        )


# Before torch had AcceleratorError (2.8), and in libraries under it, errors of a GPU are RuntimeErrors
GPU = ("torch.AcceleratorError", "builtins.RuntimeError")
NETWORK = ("torch.distributed.DistError", "builtins.RuntimeError")  # gloo's errors are often RuntimeErrors

# The first row that fits counts. Texts are those of torch 2.6 to 2.15, NCCL and gloo.
CAUSES = (
    Cause("input", "wrong settings or input", Exit.CONFIG, ("trainyard.core.exits.UserError",)),
    Cause("host", "the node's memory is too small", Exit.CONFIG, (
        "trainyard.core.exits.HostMemoryError", "builtins.MemoryError"
    )),
    Cause(
        "host", "the node's memory is too small", Exit.CONFIG, ("builtins.RuntimeError",),
        "DefaultCPUAllocator: can't allocate memory",
    ),
    Cause("memory", "the GPU's memory is too small", Exit.CONFIG, ("torch.OutOfMemoryError",)),
    Cause(
        "memory", "the GPU's memory is too small", Exit.CONFIG, (*GPU, *NETWORK),
        r"(?i)(CUDA|HIP|NCCL|Triton).*out of memory|CU(BLAS|DNN)_STATUS_ALLOC_FAILED",
    ),
    Cause(
        "unfit", "the image does not fit the node's GPU or driver", Exit.CONFIG, GPU,
        r"no kernel image is available|driver version is insufficient|NVIDIA driver on your system is too old",
    ),
    Cause(
        "determinism", "deterministic = True, and this model needs an operation that is not; set it to false",
        Exit.CONFIG, GPU, "does not have a deterministic implementation",
    ),
    Cause("files", TOO_MANY, Exit.CONFIG, ("builtins.OSError",), "", frozenset(LIMITS)),
    Cause("files", TOO_MANY, Exit.CONFIG, NETWORK, "Too many open files"),
    Cause(
        "temporary", "temporary files can be written nowhere; set TMPDIR to a folder that can be written", Exit.CONFIG,
        ("builtins.FileNotFoundError",), "No usable temporary directory",
    ),
    Cause("assertion", "a mistake in code that runs on the GPU", Exit.FAILED, GPU, "device-side assert"),
    Cause("device", "a GPU failed", Exit.DEVICE, ("torch.AcceleratorError",)),
    Cause(
        "device", "a GPU failed", Exit.DEVICE, GPU,
        r"(CUDA|HIP|cuDNN|cuBLAS|NVML|nvrtc|Triton) [Ee]rror|CU(BLAS|DNN|FFT|SOLVER)_STATUS_|"
        r"Unexpected error from cudaGetDeviceCount|^CUDA (driver|unknown)",
    ),
    Cause(
        "usage", "NCCL was used wrongly", Exit.FAILED, NETWORK, "ncclInvalidUsage|ncclInvalidArgument"
    ),
    Cause("peer", "lost contact with another process", Exit.HANG, (
        "torch.distributed.DistError", "torch.distributed.elastic.rendezvous.api.RendezvousError",
        "horovod.common.exceptions.HorovodInternalError", "builtins.ConnectionError",
    )),
    Cause(
        "peer", "lost contact with another process", Exit.HANG, ("builtins.RuntimeError",),
        r"\bgloo/|^Gloo |NCCL (error|communicator|operation)|nccl(Unhandled|System|Internal|Remote)|"
        r"Connection (closed|reset) by peer|^Timed out|Socket Timeout|Broken pipe",
    ),
    Cause("storage", "the storage does not answer", Exit.STORAGE, ("builtins.OSError",), "", frozenset(STORAGE)),
    Cause("peer", "lost contact with another process", Exit.HANG, ("builtins.TimeoutError",)),
    Cause("full", "no space is left", Exit.FAILED, ("builtins.OSError",), "", frozenset(FULL)),
    Cause("unknown", "a bug, as far as the table knows", Exit.FAILED, ("builtins.BaseException",)),
)  # fmt: skip


def cause_of(error: BaseException) -> Cause:
    """Return the row of CAUSES that explains an error; the last one explains any."""
    return next(cause for cause in CAUSES if cause.explains(error))


@contextlib.contextmanager
def pinning() -> Iterator[None]:
    """Around an allocation of pinned memory: CUDA has one error for want of the node's memory and of the GPU's.

    Raises HostMemoryError for it.
    """
    try:
        yield
    except RuntimeError as error:
        if cause_of(error).name != "memory":
            raise
        raise HostMemoryError(f"pinned memory: {str(error).splitlines()[0]}") from error


def too_many_files(what: object) -> UserError:
    """Return the words for a limit of open files that was met at this file or call."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UserError(
        f"{what}: {TOO_MANY}: this process may open {soft:,} ({hard:,} at most); raise the limit (`ulimit -n 65536`, "
        "in a pod LimitNOFILE of the node's container runtime), or fs.file-max where the whole node is at its own"
    )


def explain_permissions(path: Path) -> str:
    """Return the words for a place that may not be written: its owner, this process's user, and the remedy."""
    with contextlib.suppress(OSError, StopIteration):
        place = next(one for one in (path, *path.parents) if one.exists())
        found = place.stat()
        squashed = " (root, which NFS with root squash takes for nobody)" if os.getuid() == 0 else ""
        return (
            f"{place} belongs to uid {found.st_uid} and gid {found.st_gid} (mode {stat.S_IMODE(found.st_mode):04o}), "
            f"and this process is uid {os.getuid()} and gid {os.getgid()}{squashed}: have its owner make the folder "
            "for this user (mkdir, chown on the server), or run as its owner (on a cluster global.storage.uid and gid)"
        )
    return f"this process is uid {os.getuid()} and gid {os.getgid()}: check the permissions of the folders around it"


def write_termination_message(message: str) -> None:
    """Leave the message where the kubelet looks for it; the first process of a container to do so wins.

    The file exists only inside a pod. It is never created here, so that a run as root outside a pod leaves no file
    in /dev.
    """
    path = Path(os.environ.get("TRAINYARD_TERMINATION_LOG", TERMINATION_LOG))
    with contextlib.suppress(OSError):
        if path.exists() and path.stat().st_size == 0:
            path.write_text(printable(message).strip()[-4000:] + "\n")


def empty_termination_message() -> None:
    """Remove a message that no longer holds: the processes of this container were started again."""
    path = Path(os.environ.get("TRAINYARD_TERMINATION_LOG", TERMINATION_LOG))
    with contextlib.suppress(OSError):
        if path.exists() and path.stat().st_size:
            os.truncate(path, 0)


def end_on_failed_preflight() -> None:
    """Raise ExitError with the preflight's message and code, where the init container of this pod left them.

    Operators look at a pod's main container alone, and would recreate a pod whose init container failed forever.
    """
    handover = os.environ.get("TRAINYARD_PREFLIGHT")
    if handover and Path(handover).exists():
        note = json.loads(Path(handover).read_text())
        raise ExitError(note["message"], note["code"])


def die_with_launcher() -> None:
    """Make the kernel kill this process when the launcher that started it ends for any reason.

    A process without its launcher would keep its peers on other nodes waiting, and write beside its own successor.
    """
    launcher = int(os.environ.get(LAUNCHER, "0"))
    if launcher and os.getppid() == launcher:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != launcher:  # it died just before
            os.kill(os.getpid(), signal.SIGKILL)


def no_core_dumps() -> None:
    """Leave no core dumps, which hold weights, images and secrets, and can fill a node.

    The hard limit stays, so that a program may still ask for its own.
    """
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def show_once(message: str) -> None:
    """Show why the program ends, unless another process of the launcher, or of mpirun on this node, has shown the same.

    It is noted when it has been shown, and the others wait for that. They end at once, and for that reason the one that
    shows it may be ended, too.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    note = hashlib.sha256(f"{attempt} {message}".encode()).hexdigest()
    session = os.environ.get(MPI_SESSION, "")
    notes = os.environ.get(SAID) or (f"{session}/trainyard-said" if session else "")
    try:
        # the launcher's exists; where it has ended, none is made
        descriptor = os.open(notes, os.O_RDWR | (0 if SAID in os.environ else os.O_CREAT), 0o600)
        with os.fdopen(descriptor, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if note not in file.read().split():
                _show(message)
                print(note, file=file, flush=True)
    except OSError:  # no launcher, or it has ended: rather twice than never
        _show(message)


def _show(message: str) -> None:
    print(f"error: {printable(message)}", file=sys.stderr, flush=True)


def guarded(main: Callable[[], int]) -> NoReturn:
    """Run a program's main function and end the process with the exit code that its outcome asks for.

    A package with another project's files in it is refused first.
    The process leaves through `os._exit` after flushing: a rank whose peers have died may otherwise hang in the
    destructors of communication libraries, and its exit code would never be seen.
    """
    code = 0
    die_with_launcher()
    try:
        if wrong := distribution.find_stranger():
            raise UserError(wrong)
        code = int(main())
    except UserError as error:
        code = _report(str(error), Exit.CONFIG)
    except ExitError as error:
        code = _report(str(error), error.code)
    except KeyboardInterrupt:
        code = _report("interrupted from the keyboard", Exit.INTERRUPTED)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        cause = cause_of(error)
        if cause.name == "files":
            code = _report(str(too_many_files(error)), cause.code)
        elif cause.name == "temporary":
            code = _report(f"{cause.means} ({error})", cause.code)
        else:
            traceback.print_exc()
            code = _report(f"{type(error).__name__}: {error}", cause.code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    for thread in threading.enumerate():
        if thread.name == FINISHED_FIRST:  # a checkpoint copied before a peer died is whole, and saves its steps
            thread.join(FINISH_SECONDS)
    os._exit(code)


def _report(message: str, code: int) -> int:
    """Show why the program ends, unless a process beside it has shown the same, and keep it for the kubelet."""
    show_once(message)
    write_termination_message(message)
    return int(code)
