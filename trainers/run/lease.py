"""Which job may write a run directory: the newest job takes the lease, and an older one notices and stops.

The lease is a file in the run directory, which all pods share; locks of network file systems cannot be relied on. A
process may be suspended between its check of the lease and its write, so each checkpoint names its writer, and the next
start sets aside checkpoints whose writer did not have the lease.
"""

import contextlib
import json
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Any

from trainers.exits import UserError
from trainers.files import read_json, write_json
from trainers.run import checkpoint

STALE_SECONDS = 60.0


def job_name() -> str:
    """The job that this process belongs to, as the cluster sets it; a changed run is another job."""
    return os.environ.get("TRAINYARD_JOB", "")


class TakenOverError(UserError):
    """Another job has the run directory: this one ends and writes nothing more there."""


class Lease:
    """The lease of a run directory; only rank 0 holds one."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "lease.json"
        self.holder = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._checked = 0.0
        self._lost = False

    def take(self, checkpoints: Path) -> list[str]:
        """Take the lease; returns messages about checkpoints set aside because their writer did not have it.

        Raises TakenOverError while a newer job than this one holds it.
        """
        lease, job = self.path, job_name()
        old = read_json(lease)
        if job and job in old.get("superseded", []) and not _abandoned(lease):
            raise TakenOverError(self.taken_message())
        superseded = [name for name in [*old.get("superseded", []), old.get("job")] if name and name != job]
        new = {
            "holder": self.holder, "job": job, "time": time.time(), "superseded": list(dict.fromkeys(superseded)),
        }  # fmt: skip
        write_json(lease, {**new, "trusted": _trusted(old, checkpoints)})
        # From here on the last holder writes nothing more; what it wrote until now counts.
        trusted = _trusted(old, checkpoints)
        write_json(lease, {**new, "trusted": trusted})
        reports = []
        for path in checkpoint.steps(checkpoints):
            if path.name not in trusted:
                aside = checkpoint.set_aside(path, "late")
                reports.append(
                    f"checkpoint {path.name} was written by a process that had lost this run directory before; "
                    f"set aside as {aside.name}"
                )
        return reports

    def lost(self, every: float = 0.0) -> bool:
        """Whether another process has taken the lease; reads the file at most every few seconds."""
        now = time.monotonic()
        if not self._lost and now - self._checked >= every:
            self._checked = now
            if self.held():
                with contextlib.suppress(OSError):
                    os.utime(self.path)  # shows others that the holder is alive
        return self._lost

    def held(self) -> bool:
        """Whether this process still has the lease; asked on any thread, right before something is written.

        The process may be suspended after the answer while another takes the lease. What it then writes carries its
        name and is set aside at the next start.
        """
        try:
            holder = json.loads(self.path.read_text()).get("holder")
        except FileNotFoundError:
            holder = None
        except (OSError, ValueError):
            return not self._lost  # a brief failure of the storage does not mean that another job took over
        self._lost = self._lost or holder != self.holder
        return not self._lost

    def taken_message(self) -> str:
        """The message that names the job which took the run directory."""
        lease = read_json(self.path)
        return (
            f"{self.path.parent} was taken over by {lease.get('job') or lease.get('holder')}, a newer job; this older "
            "one stops and writes nothing more. Give one of them another name (run.dir, on a cluster training.name)"
        )

    def release(self) -> None:
        """Release the lease."""
        if read_json(self.path).get("holder") == self.holder:
            write_json(self.path, {**read_json(self.path), "released": True})


def _trusted(old: dict[str, Any], checkpoints: Path) -> list[str]:
    """Checkpoints of those who held the lease when they wrote: the last holder's own, and those it trusted."""
    saved = checkpoint.steps(checkpoints)
    if "trusted" not in old:
        return [path.name for path in saved]
    known = set(old["trusted"])
    return [path.name for path in saved if path.name in known or checkpoint.holder(path) in ("", old["holder"])]


def _abandoned(lease: Path) -> bool:
    """Wait, within bounds, for a newer job's lease to expire; False if that job still renews it."""
    deadline = time.time() + STALE_SECONDS
    while time.time() < deadline:
        if read_json(lease).get("released") or time.time() - lease.stat().st_mtime > STALE_SECONDS:
            return True
        time.sleep(0.5)
    return False
