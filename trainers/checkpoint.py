"""Checkpoints: written beside training, complete or not there, checked before use.

`checkpoints/step-00000120/` holds model.pt, optimizer.pt and manifest.json. It is filled under a temporary name, every
file is synced and hashed, the manifest is written last, and one rename makes it appear.
"""

import contextlib
import os
import re
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainers.exits import UserError
from trainers.files import read_json, sha256, sync_folder, write_json

NAME = re.compile(r"step-(\d{8,})")
FORMAT = 1

State = dict[str, Any]  # file stem -> tree of tensors


@dataclass(frozen=True)
class Found:
    """A checkpoint that passed its checks."""

    path: Path
    meta: dict[str, Any]

    @property
    def step(self) -> int:
        """Steps done when it was taken."""
        return int(self.meta["step"])

    def load(self) -> State:
        """Read its tensors."""
        names = [name.removesuffix(".pt") for name in self.meta["files"]]
        return {name: torch.load(self.path / f"{name}.pt", map_location="cpu", weights_only=True) for name in names}


def save(folder: Path, step: int, state: State, meta: dict[str, Any]) -> Path:
    """Write a checkpoint; when this returns it is complete and will survive a crash."""
    final = folder / f"step-{step:08d}"
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    files = {}
    for name, tree in state.items():
        path = temporary / f"{name}.pt"
        with path.open("wb") as file:
            torch.save(tree, file)
            file.flush()
            os.fsync(file.fileno())
        files[path.name] = {"sha256": sha256(path), "bytes": path.stat().st_size}
    write_json(temporary / "manifest.json", {"format": FORMAT, "step": step, **meta, "files": files})
    if final.exists():
        _discard(final)
    temporary.rename(final)
    sync_folder(folder)
    return final


def problem(path: Path) -> str | None:
    """What is wrong with a checkpoint, if anything."""
    manifest = read_json(path / "manifest.json")
    if not manifest:
        return "manifest.json is missing or not whole"
    if manifest.get("format") != FORMAT:
        return f"format {manifest.get('format')}, this version reads {FORMAT}"
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
        aside = _set_aside(path)
        reports.append(f"checkpoint {path.name} is damaged ({reason}); set aside as {aside.name}")
    return None, reports


def at(path: Path) -> Found:
    """The checkpoint that the user named."""
    if not path.is_dir():
        raise UserError(f"resume = {str(path)!r}: no such folder; give a checkpoints/step-NNNNNNNN folder, or auto")
    if reason := problem(path):
        raise UserError(f"resume = {str(path)!r}: not a sound checkpoint ({reason}); use another, or auto")
    return Found(path, read_json(path / "manifest.json"))


def score(folder: Path, step: int, top1: float) -> None:
    """Note what a checkpoint was measured at, so that the best ones are kept."""
    path = folder / "scores.json"
    write_json(path, {**read_json(path), str(step): top1})


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest checkpoints, and what an interrupted write has left."""
    for path in steps(folder)[:-keep]:
        _discard(path)
    for path in folder.glob(".step-*"):
        if not path.name.endswith(f".{os.getpid()}.tmp"):
            shutil.rmtree(path, ignore_errors=True)


def _discard(path: Path) -> None:
    """Remove a folder; it loses its name first, so that half of it is never taken for a checkpoint."""
    trash = path.with_name(f".{path.name}.trash")
    shutil.rmtree(trash, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        path.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def _set_aside(path: Path) -> Path:
    aside = path.with_name(f"damaged-{path.name}")
    while aside.exists():
        aside = aside.with_name(aside.name + "x")
    path.rename(aside)
    return aside


class Writer:
    """Writes checkpoints on a thread of its own; training waits only while tensors are copied."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        self._buffers: State = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.last_seconds = 0.0

    def submit(self, step: int, state: State, meta: dict[str, Any]) -> None:
        """Copy the state and start writing it; waits first if the last one is still being written."""
        self.wait()
        self._buffers = _copy(state, self._buffers)
        self._thread = threading.Thread(target=self._write, args=(step, meta), name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being written; raises what went wrong, if anything did."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise UserError(
                f"checkpoint cannot be written to {self._folder}: {error}; check space and rights"
            ) from error

    def _write(self, step: int, meta: dict[str, Any]) -> None:
        start = time.monotonic()
        try:
            save(self._folder, step, self._buffers, meta)
            prune(self._folder, self._keep)
        except BaseException as error:
            self._error = error
        self.last_seconds = time.monotonic() - start


def _copy(tree: Any, kept: Any) -> Any:
    """Copy a tree of tensors to memory of this process, into the buffers of the last copy where they fit."""
    if isinstance(tree, Tensor):
        if isinstance(kept, Tensor) and kept.shape == tree.shape and kept.dtype == tree.dtype:
            return kept.copy_(tree.detach())
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        old = kept if isinstance(kept, dict) else {}
        return {key: _copy(value, old.get(key)) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        olds = kept if isinstance(kept, list) and len(kept) == len(tree) else [None] * len(tree)
        return [_copy(value, old) for value, old in zip(tree, olds, strict=True)]
    return tree
