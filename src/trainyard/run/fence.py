"""Numbered leases: which process may write a run directory, on storage that machines see through caches.

A lease is a folder, `leases/00000007`. It holds the record of who took it, a heartbeat, and everything that its holder
is about to publish: checkpoints, weights and summaries are written there and renamed to where they belong. So the
folder that grants the right to publish is also the only place to publish from:

take    a folder is made, the newest number is looked for, and the folder with the record in it is renamed to the next
        one. A rename to a folder that is not empty fails, so one process gets each number, and one that sees the number
        sees the record.
fence   the new holder removes the folders of all lower numbers, and those that have none yet. After that no older
        holder can publish, whatever it believes and however long it was suspended: what it would rename is gone, and
        nothing can be created in a folder that was removed. Only then does the new holder look which checkpoints there
        are.
learn   an older holder finds out at its next heartbeat, whose file is gone; nothing depends on when.

No clock is compared, and no lock outlives a machine. It needs from storage that the server carries out a rename and the
removal of a folder in one piece and refuses names in a removed folder, which is true of local file systems, NFSv3 and
NFSv4 (RFC 1813, 3.3.13 and 3.3.14; RFC 8881, 18.25 and 18.26), CephFS, Lustre, GlusterFS and SMB. Caches do no harm:
an NFS client may show names of a minute ago (acdirmax, nfs(5)), but a rename is decided by the server, where a number
that was taken stays taken; and the names of a folder are read after a change to it, which makes a client ask again.
Opening a file asks the server, too (close-to-open), so a changed heartbeat is seen. A call whose answer is lost may be
repeated and then fail, although it was done (NFS over a broken connection); so after a failed rename the record says
who did it.

Other schemes were weighed. Files made with O_EXCL would give numbers, too, but nothing is decided by the server between
a holder's look at them and its rename. Locks (flock, fcntl) end with a connection, or not at all when a machine dies
(NFSv3). Mounted object stores (GCS FUSE, Mountpoint for S3) rename folders file by file or not at all, so they hold
neither this lease nor checkpoints; there a late checkpoint is still recognised by its writer (`lease.py`).
"""

import contextlib
import errno
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trainyard.core.exits import Exit, ExitError
from trainyard.core.files import fits, parse_json
from trainyard.run.lease_files import Calls, unique

FOLDER = "leases"
MIRROR = "lease.json"  # the newest record again, for people and for version 0.1.0, which has no numbers
RECORD = "lease.json"
HEARTBEAT = "heartbeat"
STALE_SECONDS = 60.0  # a heartbeat that has not changed for so long is that of a dead process
BEAT_SECONDS = 2.0
PAUSE = 0.2
LOOKS = 10  # with pauses, at a folder without a record: the newest one stays that only if nobody is at work in it
TRIES = 600  # with pauses: longer than a client's cache of names may lag behind
NAME = re.compile(r"[0-9]{8,18}")
NEW, ASIDE = ".new-", ".gone-"  # how names begin of what has no number yet, and of what is being removed
LEAVING = "leaving"  # in a lease's folder: checkpoints that its holder is setting aside
CHECKPOINTS = "checkpoints"
NO_RECORD = "no_record"
KINDS = {
    "number": (int,), **dict.fromkeys(("holder", "job", "owner"), (str,)),
    **dict.fromkeys(("superseded", "trusted", "writers"), (list,)), **dict.fromkeys(("entered", "released"), (bool,)),
}  # fmt: skip
TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT, errno.ESTALE, errno.ENOTDIR, errno.EBUSY)


@dataclass(frozen=True)
class Record:
    """The record of a lease: its holder."""

    number: int = 0  # 0: a record of version 0.1.0
    holder: str = ""  # unique among all processes on all machines
    job: str = ""
    owner: str = ""  # the release that the run directory belongs to; empty outside a cluster
    superseded: tuple[str, ...] = ()  # older jobs, which may not take the lease while this one is alive
    # Checkpoints that count, no matter who wrote them (None: all), and whose other checkpoints count
    trusted: tuple[str, ...] | None = None
    writers: tuple[str, ...] = ()
    entered: bool = False  # the job has moved aside what it does not continue
    released: bool = False
    further: dict[str, Any] = field(default_factory=dict)  # for people

    def encode(self) -> bytes:
        """Return the record's file."""
        fields = asdict(self)
        fields.update(fields.pop("further"))
        if self.trusted is None:
            del fields["trusted"]
        return (json.dumps(fields, indent=2) + "\n").encode()


def decode(data: bytes) -> Record:
    """Read a record's file; raises ValueError. What version 0.1.0 wrote is read, too."""
    found = parse_json(data)
    if not isinstance(found, dict) or not fits(found, KINDS) or found.get("number", 0) < 0:
        raise ValueError("not a record")
    names = [name for key in ("superseded", "trusted", "writers") for name in found.get(key, ())]
    if not all(isinstance(name, str) for name in names):
        raise ValueError("not a record")
    holder: str = found.get("holder", "")
    return Record(
        found.get("number", 0), holder, found.get("job", ""), found.get("owner", ""),
        tuple(found.get("superseded", ())), tuple(found["trusted"]) if "trusted" in found else None,
        tuple(found.get("writers", [holder])), found.get("entered", True), found.get("released", False),
    )  # fmt: skip


def folder_of(root: Path, number: int) -> Path:
    """Return the folder of a lease of a run directory."""
    return root / FOLDER / f"{number:08d}"


def newest(storage: Calls, root: Path, *, look_only: bool = False) -> Record | None:
    """Return the newest lease's record; None if there never was one. Changes nothing with `look_only`. Raises OSError.

    Where its folder has no record that can be read, and still is the newest at several looks, its holder is known to
    nobody: the record says so (`further`), and the rest is that of the last one that can be read.
    """
    looked: list[int] = []
    for _ in range(TRIES):
        old = _read(storage, root / MIRROR)
        numbers = sorted(_numbers(storage, root / FOLDER, fresh=not look_only))
        number = numbers[-1] if numbers else 0
        if not number or (old and old.number > number):
            return old
        if record := _read(storage, folder_of(root, number) / RECORD):
            by_older_version = old is not None and not old.number
            # A job of version 0.1.0 that came later is known by the file that it wrote; the owner stays
            return replace(old, number=number, owner=record.owner) if old and by_older_version else record
        looked = [*looked, number] if number in looked else [number]
        if len(looked) == LOOKS:
            break
        storage.sleep(PAUSE)  # a newer job has just removed it, and the cache still shows its name
    lower = [_read(storage, folder_of(root, one) / RECORD) for one in numbers[:-1]]
    last = max((one for one in (*lower, old) if one), key=lambda one: one.number, default=Record())
    if last.number == number:  # the copy that is made for people
        return last
    return replace(last, number=number, trusted=None, released=False, further={NO_RECORD: f"{number:08d}"})


def take(storage: Calls, root: Path, follow: Callable[[Record | None], Record]) -> tuple[Record, Record | None]:
    """Take the lease; returns its record and the one before. `fence` must follow before anything is read or published.

    `follow` makes the new record from the newest, and raises where this process must not take the lease. Raises
    ExitError where others always are faster, OSError.
    """
    with contextlib.suppress(FileExistsError):
        storage.make(root / FOLDER)
    for _ in range(TRIES):
        # Before the newest is looked for: a job that takes the directory after that look removes it (`fence`), so no
        # number is ever given to it that was taken and removed
        new = root / FOLDER / f"{NEW}{unique()}"
        try:
            with contextlib.suppress(FileExistsError):
                storage.make(new)
            wanted = follow(before := newest(storage, root))
            record = replace(wanted, number=(before.number if before else 0) + 1)
            taken = _create(storage, root, new, record)
        except Exception:
            with contextlib.suppress(OSError):
                remove_tree(storage, new)
            raise
        if taken:
            newer = _read(storage, root / MIRROR)
            numbers = [*_numbers(storage, root / FOLDER, fresh=True), newer.number if newer else 0]
            if max(numbers) <= record.number:
                return record, before
            remove_tree(storage, folder_of(root, record.number))  # a newer job came, or removed that number before
        storage.sleep(PAUSE)
    raise ExitError(f"{root} is taken by others again and again; start one job at a time", Exit.HANG)


def fence(storage: Calls, root: Path, record: Record) -> None:
    """Remove what older holders could publish from. When this returns none of them ever publishes again.

    Raises ExitError where a folder cannot be removed, OSError.
    """
    for _ in range(TRIES):
        older = _older(storage, root, record)
        if not older:
            return
        for name in older:
            path = root / FOLDER / name
            if not name.startswith(ASIDE):
                aside = path.with_name(f"{ASIDE}{name}-{unique()}")
                with contextlib.suppress(FileNotFoundError):
                    # From here on its holder finds nothing under this name. What a cache still shows under it may be
                    # a newer lease by now (what is new gets its number by a rename): nothing of that is touched
                    storage.rename(path, aside)
                path = aside
            if _finish_leaving(storage, path / LEAVING, root / CHECKPOINTS):
                remove_tree(storage, path)
        storage.sleep(PAUSE)
    raise ExitError(
        f"{root / FOLDER / older[0]} of an older process cannot be removed, so it could still publish here; end that "
        "process (lease.json names it), or remove the folder",
        Exit.HANG,
    )


def beat(storage: Calls, root: Path, record: Record, count: int) -> bool:
    """Show that the holder is alive; False if it holds the lease no longer. Raises OSError, which says neither."""
    try:
        storage.overwrite(folder_of(root, record.number) / HEARTBEAT, f"{count} {record.holder}\n".encode())
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def taken_by_older_version(storage: Calls, root: Path) -> bool:
    """Whether a job of version 0.1.0 took the run directory after a holder wrote its copy of the record."""
    mirror = _read(storage, root / MIRROR)
    return mirror is not None and not mirror.number


def put(storage: Calls, root: Path, record: Record, target: Path, data: bytes) -> None:
    """Write a file as the lease's holder: it takes its name only while the lease is held. Raises OSError."""
    staged = folder_of(root, record.number) / f".{target.name}-{unique()}"
    storage.write(staged, data)
    try:
        storage.rename(staged, target)
    except FileNotFoundError:
        if _bytes(storage, target) != data:  # else only the answer was lost
            raise


def publish_folder(storage: Calls, staged: Path, final: Path, proof: str) -> None:
    """Give a staged folder its final name; an older one of that name goes. `proof` names a file that is its own.

    The caller stages it in its lease's folder, so FileNotFoundError says that the lease is lost. Raises OSError.
    """
    mark = storage.read(staged / proof)
    try:
        storage.rename(staged, final)
    except FileNotFoundError:
        if _bytes(storage, final / proof) != mark:  # else it was done, and only the answer was lost
            raise
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        old = staged.with_name(f"{staged.name}.old")
        with contextlib.suppress(FileNotFoundError):
            storage.rename(final, old)
        publish_folder(storage, staged, final, proof)
        remove_tree(storage, old)


def set_aside(storage: Calls, path: Path, why: str, lease: Path | None) -> Path:
    """Give a checkpoint another name, which begins with why; return that.

    The holder of a lease does so by way of `lease`, its folder, so FileNotFoundError says that the lease is lost. After
    a crash between the two renames the next holder does the second one (`fence`). Raises OSError.
    """
    aside = _free(storage, path.with_name(f"{why}-{path.name}"))
    if lease:
        staged = lease / LEAVING / aside.name
        with contextlib.suppress(FileExistsError):
            storage.make(staged.parent)
        storage.rename(path, staged)
        path = staged
    storage.rename(path, aside)
    return aside


def abandoned(storage: Calls, root: Path, record: Record) -> bool:
    """Wait until the holder of a lease has released it or its heartbeat stands still; False while it is alive.

    Only changes are observed, over seconds of this machine's own clock.
    """
    begun = changed = storage.now()
    seen: tuple[int, bytes] | None = None
    while True:
        current = newest(storage, root, look_only=True)
        if current is None or current.released:
            return True
        found = current.number, _bytes(storage, folder_of(root, current.number) / HEARTBEAT)
        now = storage.now()
        if found != seen:
            changed = now if seen is not None else changed
            seen = found
        if now - changed >= STALE_SECONDS:
            return True
        if now - begun >= STALE_SECONDS and now - changed < STALE_SECONDS / 2:
            return False
        storage.sleep(STALE_SECONDS / 120)


def remove_tree(storage: Calls, folder: Path) -> None:
    """Remove a folder and what is in it, as far as that works; others may do so, too, or fill it again.

    A file that somebody has put there in its place goes, too.
    """
    with contextlib.suppress(FileNotFoundError):
        try:
            names = storage.names(folder)
        except NotADirectoryError:
            storage.remove(folder)
            return
        for name in names:
            try:
                storage.remove(folder / name)
            except (IsADirectoryError, PermissionError):  # POSIX allows either for a folder
                remove_tree(storage, folder / name)
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
        try:
            storage.remove_folder(folder)
        except OSError as error:
            if error.errno not in TAKEN:
                raise


def _create(storage: Calls, root: Path, new: Path, record: Record) -> bool:
    """Create a lease with its record and heartbeat in it, of the folder `new`; False if its number is taken."""
    final = folder_of(root, record.number)
    try:
        storage.write(new / RECORD, record.encode())
        storage.write(new / HEARTBEAT, b"0\n")
        storage.rename(new, final)
    except OSError as error:
        found = _read(storage, final / RECORD)
        if found and found.holder == record.holder:
            return True  # only the answer was lost
        remove_tree(storage, new)
        if error.errno not in TAKEN:
            raise
        return False
    return True


def _older(storage: Calls, root: Path, record: Record) -> list[str]:
    """Return what lies in the folder of leases and is not this one, nor a newer one."""
    found = []
    for name in storage.fresh_names(root / FOLDER):
        older = (
            int(name) < record.number if NAME.fullmatch(name) else not _only_open_here(storage, root / FOLDER / name)
        )
        found += [name] * older
    return found


def _finish_leaving(storage: Calls, leaving: Path, checkpoints: Path) -> bool:
    """Give checkpoints the names under which an older holder was setting them aside; False where any is still there."""
    try:
        names = storage.fresh_names(leaving)
    except (FileNotFoundError, NotADirectoryError):
        return True
    for name in names:
        if name.startswith("."):  # of a newer job that looks at the names, too, or was killed at it
            remove_tree(storage, leaving / name)
            continue
        with contextlib.suppress(FileExistsError):
            storage.make(checkpoints)  # somebody may have removed it
        with contextlib.suppress(FileNotFoundError):  # another newer job has done it
            storage.rename(leaving / name, _free(storage, checkpoints / name))
    try:
        storage.remove_folder(leaving)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return False  # one more has come just now: the next look at this lease finds it
    return True


def _free(storage: Calls, path: Path) -> Path:
    """Return a name that nothing in its folder has: the path's, with as many x as it takes."""
    taken = storage.fresh_names(path.parent)
    while path.name in taken:
        path = path.with_name(f"{path.name}x")
    return path


def _only_open_here(storage: Calls, folder: Path) -> bool:
    """Whether a folder that was put aside holds only what an NFS client keeps of files that are open on it (`.nfs...`).

    Their holder runs on this machine, whose cache no longer has the folder's name, so it finds no way to them either.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = storage.names(folder)
        return bool(names) and all(name.startswith(".nfs") or _only_open_here(storage, folder / name) for name in names)
    return False


def _numbers(storage: Calls, leases: Path, *, fresh: bool) -> list[int]:
    try:
        names = storage.fresh_names(leases) if fresh else storage.names(leases)
    except FileNotFoundError:
        return []
    return [int(name) for name in names if NAME.fullmatch(name)]


def _read(storage: Calls, path: Path) -> Record | None:
    """Return a record; None without one, or while it is not whole."""
    try:
        return decode(storage.read(path))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def _bytes(storage: Calls, path: Path) -> bytes:
    try:
        return storage.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return b""
