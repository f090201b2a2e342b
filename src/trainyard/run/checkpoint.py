"""Checkpoints: written while training continues, complete or absent, checked before use.

`checkpoints/step-00000120/` holds model.safetensors, optimizer.safetensors (and ema.safetensors) and manifest.json. Its
files are written under a temporary folder name, each hashed while it is written and synced; the manifest is written
last, with a checksum of itself, and one rename publishes the folder. `scores.json` beside the checkpoints keeps
validation accuracies, so that the best checkpoints can be kept.

Rank 0 writes whole tensors, so a checkpoint has the same bytes for every strategy and every number of processes, and
any number of processes resumes from it. PyTorch's distributed checkpoint
(torch.distributed.checkpoint) would write each process's part, which is needed where a model exceeds one machine's
memory; image classifiers do not. It has no checksums, is not complete by one rename, and its `async_save` stalls
training for longer than `torch.save` takes here (benchmarks/cpu/checkpoint.py measures all three).
"""

import contextlib
import re
import secrets
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard import __version__
from trainyard.core.exits import UserError
from trainyard.core.files import MISSING, drop_cached_file, rename, sync_folder
from trainyard.core.storage import StorageError, storage, unreadable
from trainyard.run import checkpoint_manifest, fence
from trainyard.run import lease_files as calls

if TYPE_CHECKING:  # it imports torch, and a run looks for its checkpoints before that
    from trainyard.run.tensor_file import Buffer

NAME = re.compile(r"step-([0-9]{8,18})")
OF_STEP = re.compile(r"step-([0-9]{8,18})x*$")  # also where it was set aside
FORMAT = 3  # the optimizer's state is keyed by parameter name; in format 2 it was keyed by position
READABLE = (2, 3)
SUFFIX = ".safetensors"
ASIDE = ("damaged", "late", "left")  # why a checkpoint was set aside, as its name begins

State = dict[str, Any]  # file stem -> tree of tensors


class NotOursError(Exception):
    """Another job took the run directory over while a checkpoint was being written."""


@dataclass(frozen=True)
class Found:
    """A checkpoint that passed its checks."""

    path: Path
    meta: dict[str, Any]

    @property
    def step(self) -> int:
        """Steps done when it was taken."""
        return int(self.meta["step"])

    def holds(self, name: str) -> bool:
        """Whether it has a tree of this name."""
        return f"{name}{SUFFIX}" in self.meta["files"]

    def load(self) -> State:
        """Read its tensors; raises OSError and StorageError."""
        names = (name.removesuffix(SUFFIX) for name in self.meta["files"])
        return {name: self.tree(name) for name in names}

    def tree(self, name: str) -> Any:
        """Read one of its trees, from the bytes that were checked; raises OSError and StorageError."""
        from trainyard.run.tensor_file import read

        return read(self.path / f"{name}{SUFFIX}", self.meta["files"][f"{name}{SUFFIX}"]["sha256"])


def is_always_ours() -> bool:
    """Return the default `ours`: for folders that no other job can take over."""
    return True


def save(
    folder: Path, step: int, state: State, meta: dict[str, Any], ours: Callable[[], bool] = is_always_ours
) -> Path:
    """Write a checkpoint; when this returns it is complete and survives a crash."""
    from trainyard.run.tensor_file import Buffer, copy

    buffers = {name: Buffer() for name in state}
    for name, tree in state.items():
        copy(buffers[name].fit(tree))
    return write(folder, step, buffers, meta, ours=ours)


def write(
    folder: Path,
    step: int,
    buffers: "dict[str, Buffer]",
    meta: dict[str, Any],
    *,
    ours: Callable[[], bool] = is_always_ours,
    staging: Path | None = None,
) -> Path:
    """Write the copied tensors, again while the storage fails; `ours` is asked last.

    They are written in the folder `staging` (that of the lease, which goes with it), and without one beside the others.
    After an error nothing half-written is left. Raises NotOursError, OSError and StorageError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{step:08d}"
    storage.perform(final, _write, final, buffers, {"step": step, **meta}, ours, staging or folder)
    storage.perform(folder, sync_folder, folder)
    return final


def _write(
    final: Path, buffers: "dict[str, Buffer]", meta: dict[str, Any], ours: Callable[[], bool], staging: Path
) -> None:
    temporary = staging / f".{final.name}.{secrets.token_hex(4)}.tmp"
    try:
        temporary.mkdir(exist_ok=True)  # on a network a call may be repeated whose answer was lost
        files = {f"{name}{SUFFIX}": buffer.write(temporary / f"{name}{SUFFIX}") for name, buffer in buffers.items()}
        storage.write_json(
            temporary / "manifest.json", checkpoint_manifest.add_checksum({"format": FORMAT, **meta, "files": files})
        )
        if not ours():
            raise NotOursError
        fence.publish_folder(calls, temporary, final, "manifest.json")
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError | StorageError) and not ours():
            raise NotOursError from None
        raise


class DamagedCheckpointError(Exception):
    """A checkpoint that lacks a part, or has one that is not whole."""


def read_checked(path: Path) -> Found:
    """Return a checkpoint whose parts are all there and whole; raises DamagedCheckpointError where two looks agree.

    Only what is missing, unparsable, of another size or of another hash is damage. Raises StorageError where the
    storage does not answer, and UserError for a format that this version does not read.
    """
    try:
        return _check(path)
    except DamagedCheckpointError:
        for file in storage.list_folder(path):
            drop_cached_file(file)
        return _check(path)


def _check(path: Path) -> Found:
    meta = storage.read_json(path / "manifest.json")
    if fault := checkpoint_manifest.find_fault(meta):
        raise DamagedCheckpointError(fault)
    if meta["format"] not in READABLE:
        raise UserError(
            f"{path} has format {meta['format']}, written by version {meta.get('version', 'unknown')}; this version, "
            f"{__version__}, reads formats {' and '.join(map(str, READABLE))}. Nothing was changed: use the image "
            "that wrote it or a newer one, give this run another name (run.dir, on a cluster training.name), or set "
            "resume to never"
        )
    found = {file.name for file in storage.list_folder(path) if file.suffix == SUFFIX}
    if fault := checkpoint_manifest.find_missing(meta, found):
        raise DamagedCheckpointError(fault)
    named = OF_STEP.search(path.name)
    if named and int(named[1]) != meta["step"]:
        raise DamagedCheckpointError(f"manifest.json is that of step {meta['step']}")
    for name, entry in meta["files"].items():
        _check_file(path / name, entry["bytes"], entry["sha256"])
    return Found(path, meta)


def _check_file(file: Path, size: int, digest: str) -> None:
    from trainyard.run.tensor_file import check

    try:
        found = storage.stat(file, listed=True).st_size
        if found != size:
            raise DamagedCheckpointError(f"{file.name} has {found} bytes, not {size}")
        if storage.hash_file(file) != digest:
            raise DamagedCheckpointError(f"{file.name} has changed: its checksum is wrong")
        check(file)
    except MISSING:
        raise DamagedCheckpointError(f"{file.name} is missing") from None
    except ValueError as error:  # written so: the manifest vouches for what cannot be loaded
        raise DamagedCheckpointError(str(error)) from None
    except OSError as error:
        raise unreadable(file, error) from error


def steps(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first; raises StorageError."""
    found = (path for path in storage.list_folder(folder) if NAME.fullmatch(path.name))
    return sorted(found, key=lambda path: int(path.name[5:]))


def list_damaged(folder: Path) -> list[Path]:
    """Return the checkpoints that were set aside as damaged."""
    return sorted(path for path in storage.list_folder(folder) if path.name.startswith("damaged-"))


def newest(folder: Path, staging: Path | None = None, after: int = -1) -> tuple[Found | None, list[str]]:
    """Return the newest sound checkpoint of a step `after` one; damaged ones are set aside, and reported.

    Raises UserError, StorageError, and FileNotFoundError where `staging`, the lease's folder, is gone.
    """
    reports: list[str] = []
    for path in reversed(steps(folder)):
        if int(path.name[5:]) <= after:
            break
        try:
            return read_checked(path), reports
        except DamagedCheckpointError as damage:
            aside = fence.set_aside(calls, path, "damaged", staging)
            reports.append(f"checkpoint {path.name} is damaged ({damage}); set aside as {aside.name}")
    return None, reports


def at(path: Path) -> Found:
    """Return the checkpoint that the user named; raises UserError and StorageError."""
    if not storage.list_folder(path):
        raise UserError(f"resume = {str(path)!r}: no such folder; give a checkpoints/step-NNNNNNNN folder, or auto")
    try:
        return read_checked(path)
    except DamagedCheckpointError as damage:
        raise UserError(f"resume = {str(path)!r}: not a sound checkpoint ({damage}); use another, or auto") from None


def score(folder: Path, step: int, top1: float, staging: Path | None = None) -> None:
    """Note what the validation at a step gave, in percent; `prune` keeps the best by it."""
    folder.mkdir(parents=True, exist_ok=True)
    scores = storage.read_json(folder / "scores.json")
    storage.write_json(folder / "scores.json", {**scores, f"step-{step:08d}": top1}, via=staging)


def prune(folder: Path, keep_last: int, keep_best: int = 0, staging: Path | None = None) -> None:
    """Remove all but the newest checkpoints and those with the highest scores."""
    saved = steps(folder)
    found = storage.read_json(folder / "scores.json")
    scores = {name: top1 for name, top1 in found.items() if type(top1) in (int, float)}  # whatever else stands there
    ranked = sorted((path for path in reversed(saved) if path.name in scores), key=lambda path: -scores[path.name])
    for path in set(saved) - set(saved[-keep_last:]) - set(ranked[:keep_best]):
        _discard(path, staging or folder)


def tidy(folder: Path, keep: int) -> None:
    """Remove what interrupted writes left, and of the checkpoints that were set aside all but the `keep` newest a kind.

    Only for who has just taken the run directory: no other process writes there.
    """
    for path in folder.glob(".step-*"):  # by a version that wrote beside the checkpoints
        shutil.rmtree(path, ignore_errors=True)
    for kind in ASIDE:
        for path in _by_age(folder.glob(f"{kind}-step-*"))[: -keep or None]:
            shutil.rmtree(path, ignore_errors=True)


def _by_age(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name))


def _discard(path: Path, staging: Path) -> None:
    """Remove a folder; it loses its name first, so that half of it is never mistaken for a checkpoint."""
    trash = staging / f".{path.name}.trash"
    shutil.rmtree(trash, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        rename(path, trash)
    shutil.rmtree(trash, ignore_errors=True)
