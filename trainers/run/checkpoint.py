"""Checkpoints: written while training continues, complete or absent, checked before use.

`checkpoints/step-00000120/` holds model.safetensors, optimizer.safetensors (and ema.safetensors) and manifest.json. Its
files are written under a temporary folder name, each hashed while it is written and synced; the manifest is written
last, and one rename publishes the folder. `scores.json` beside the checkpoints keeps validation accuracies, so that
the best checkpoints can be kept.

Rank 0 writes whole tensors, so a checkpoint has the same bytes for every strategy and every number of processes, and
any number of processes resumes from it. PyTorch's distributed checkpoint
(torch.distributed.checkpoint) would write each process's part, which is needed where a model exceeds one machine's
memory; image classifiers do not. It has no checksums, is not complete by one rename, and its `async_save` stalls
training for longer than `torch.save` takes here (scripts/bench/checkpoint.py measures all three).
"""

import contextlib
import re
import secrets
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainers.exits import UserError
from trainers.files import read_json, sha256, sync_folder, write_json
from trainers.run import fence, storage
from trainers.run.tensor_file import Buffer, copy, read

NAME = re.compile(r"step-(\d{8,})")
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
        """Read its tensors."""
        return {name.removesuffix(SUFFIX): read(self.path / name) for name in self.meta["files"]}


def always() -> bool:
    """The default `ours`: for folders that no other job can take over."""
    return True


def save(folder: Path, step: int, state: State, meta: dict[str, Any], ours: Callable[[], bool] = always) -> Path:
    """Write a checkpoint; when this returns it is complete and survives a crash."""
    buffers = {name: Buffer() for name in state}
    for name, tree in state.items():
        copy(buffers[name].fit(tree))
    return write(folder, step, buffers, meta, ours=ours)


def write(
    folder: Path,
    step: int,
    buffers: dict[str, Buffer],
    meta: dict[str, Any],
    *,
    ours: Callable[[], bool] = always,
    staging: Path | None = None,
) -> Path:
    """Write the copied tensors; `ours` is asked last. After an error nothing half-written is left.

    They are written in the folder `staging` (that of the lease, which goes with it), and without one beside the others.
    Raises NotOursError where another job has the run directory, OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{step:08d}"
    temporary = (staging or folder) / f".{final.name}.{secrets.token_hex(4)}.tmp"
    try:
        temporary.mkdir(exist_ok=True)  # on a network a call may be repeated whose answer was lost
        files = {f"{name}{SUFFIX}": buffer.write(temporary / f"{name}{SUFFIX}") for name, buffer in buffers.items()}
        write_json(temporary / "manifest.json", {"format": FORMAT, "step": step, **meta, "files": files})
        if not ours():
            raise NotOursError
        fence.publish_folder(storage, temporary, final, "manifest.json")
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and not ours():
            raise NotOursError from None
        raise
    sync_folder(folder)
    return final


def problem(path: Path) -> str | None:
    """What is wrong with a checkpoint, if anything."""
    manifest = read_json(path / "manifest.json")
    if not manifest:
        return "manifest.json is missing or not whole"
    if manifest.get("format") not in READABLE:
        return f"format {manifest.get('format')}, this version reads {' and '.join(map(str, READABLE))}"
    for name, entry in manifest["files"].items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != entry["bytes"]:
            return f"{name} has {file.stat().st_size} bytes, not {entry['bytes']}"
        if sha256(file) != entry["sha256"]:
            return f"{name} has changed: its checksum is wrong"
    return None


def steps(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if NAME.fullmatch(path.name)), key=lambda path: int(path.name[5:]))


def newest(folder: Path) -> tuple[Found | None, list[str]]:
    """The newest sound checkpoint; damaged ones are set aside, and reported."""
    reports: list[str] = []
    for path in reversed(steps(folder)):
        reason = problem(path)
        if reason is None:
            return Found(path, read_json(path / "manifest.json")), reports
        aside = set_aside(path, "damaged")
        reports.append(f"checkpoint {path.name} is damaged ({reason}); set aside as {aside.name}")
    return None, reports


def at(path: Path) -> Found:
    """The checkpoint that the user named."""
    if not path.is_dir():
        raise UserError(f"resume = {str(path)!r}: no such folder; give a checkpoints/step-NNNNNNNN folder, or auto")
    if reason := problem(path):
        raise UserError(f"resume = {str(path)!r}: not a sound checkpoint ({reason}); use another, or auto")
    return Found(path, read_json(path / "manifest.json"))


def score(folder: Path, step: int, top1: float, staging: Path | None = None) -> None:
    """Note what the validation at a step gave, in percent; `prune` keeps the best by it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "scores.json", {**read_json(folder / "scores.json"), f"step-{step:08d}": top1}, via=staging)


def prune(folder: Path, keep_last: int, keep_best: int = 0, staging: Path | None = None) -> None:
    """Remove all but the newest checkpoints and those with the highest scores."""
    saved = steps(folder)
    scores = read_json(folder / "scores.json")
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
    """Remove a folder; it loses its name first, so that half of it is never taken for a checkpoint."""
    trash = staging / f".{path.name}.trash"
    shutil.rmtree(trash, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        path.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def set_aside(path: Path, why: str) -> Path:
    """Give a checkpoint that must not be used another name, which begins with why."""
    aside = path.with_name(f"{why}-{path.name}")
    while aside.exists():
        aside = aside.with_name(aside.name + "x")
    path.rename(aside)
    return aside
