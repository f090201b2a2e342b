"""Checkpoints: written beside training, complete or not there, checked before use.

`checkpoints/step-00000120/` holds model.safetensors, optimizer.safetensors (and ema.safetensors) and manifest.json. It
is filled under a temporary name, every file is hashed while it is written, and synced; the manifest is written last,
and one rename makes it appear. `scores.json` beside them says what the validations gave, for keeping the best.

The first process writes whole tensors, so that a checkpoint has the same bytes whichever strategy and however many
processes wrote it, and any number of processes goes on from it. PyTorch's distributed checkpoint
(torch.distributed.checkpoint) would write each process's part: needed where a model does not fit into one machine's
memory, which image classifiers do. It knows no checksums, is not complete by one rename, and its `async_save` holds
training up for longer than `torch.save` takes here (scripts/bench/checkpoint.py measures all three).
"""

import contextlib
import errno
import logging
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainers.exits import FINISHED_FIRST, Exit, ExitError, UserError
from trainers.files import read_json, sha256, sync_folder, write_json
from trainers.run.tensor_file import Buffer, Source, copy, read

NAME = re.compile(r"step-(\d{8,})")
FORMAT = 2
SUFFIX = ".safetensors"
NICENESS = 19  # of the thread that writes: training goes first where there are too few cores

CHANGED = "weights changed in a forward or backward; from now on all is copied before training goes on"
log = logging.getLogger("trainers")

State = dict[str, Any]  # file stem -> tree of tensors


class NotOursError(Exception):
    """Another job has taken the run directory over while a checkpoint was being written."""


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
        return {name.removesuffix(SUFFIX): read(self.path / name) for name in self.meta["files"]}


def always() -> bool:
    """For folders that nobody else can take over."""
    return True


def save(folder: Path, step: int, state: State, meta: dict[str, Any], ours: Callable[[], bool] = always) -> Path:
    """Write a checkpoint; when this returns it is complete and will survive a crash."""
    buffers = {name: Buffer() for name in state}
    for name, tree in state.items():
        copy(buffers[name].fit(tree))
    return write(folder, step, buffers, meta, ours)


def write(folder: Path, step: int, buffers: dict[str, Buffer], meta: dict[str, Any], ours: Callable[[], bool]) -> Path:
    """Write what was copied; `ours` is asked last of all. Whatever goes wrong, nothing half-written is left."""
    final = folder / f"step-{step:08d}"
    temporary = folder / f".{final.name}.{secrets.token_hex(4)}.tmp"
    try:
        temporary.mkdir(parents=True)
        files = {f"{name}{SUFFIX}": buffer.write(temporary / f"{name}{SUFFIX}") for name, buffer in buffers.items()}
        write_json(temporary / "manifest.json", {"format": FORMAT, "step": step, **meta, "files": files})
        if not ours():
            raise NotOursError
        if final.exists():
            _discard(final)
        temporary.rename(final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
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


def holder(path: Path) -> str:
    """Who held the run directory's lease when a checkpoint was written; empty if that is not known."""
    return str(read_json(path / "manifest.json").get("holder", ""))


def score(folder: Path, step: int, top1: float) -> None:
    """Note what the validation at a step gave, in percent; `prune` keeps the best by it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "scores.json", {**read_json(folder / "scores.json"), f"step-{step:08d}": top1})


def prune(folder: Path, keep_last: int, keep_best: int = 0) -> None:
    """Remove all but the newest checkpoints and those with the highest scores, and what interrupted writes left."""
    saved = steps(folder)
    scores = read_json(folder / "scores.json")
    ranked = sorted((path for path in reversed(saved) if path.name in scores), key=lambda path: -scores[path.name])
    for path in set(saved) - set(saved[-keep_last:]) - set(ranked[:keep_best]):
        _discard(path)
    for path in folder.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def _discard(path: Path) -> None:
    """Remove a folder; it loses its name first, so that half of it is never taken for a checkpoint."""
    trash = path.with_name(f".{path.name}.trash")
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


class Writer:
    """Writes checkpoints on a thread of its own; training waits only while tensors are copied."""

    def __init__(
        self, folder: Path, keep_last: int, keep_best: int = 0, ours: Callable[[], bool] = always, holder: str = ""
    ) -> None:
        """`ours` says whether the folder may still be written to; `holder` names who writes, in the manifests."""
        self._folder = folder
        self._keep = keep_last, keep_best
        self._ours = ours
        self._holder = holder
        self._buffers: dict[str, Buffer] = {}
        self._thread: threading.Thread | None = None
        self._copied = threading.Event()
        self._versions: list[int] = []
        self._hurry = False
        self._on_device: torch.cuda.Event | None = None
        self._stream: torch.cuda.Stream | None = None
        self._error: BaseException | None = None
        self.last_seconds = 0.0

    def submit(self, step: int, state: State, meta: dict[str, Any], changing: Iterable[Tensor] | None = None) -> None:
        """Take the state and start writing it; waits first if the last one is still being written.

        The tensors of `changing` (all, if None) may change as soon as this returns, the others once `settle` has:
        a step's forward and backward leave the weights and the optimizer's state as they are, so copying goes on.
        """
        self.wait()
        self._buffers = {name: self._buffers.get(name) or Buffer() for name in state}
        sources = [source for name, tree in state.items() for source in self._buffers[name].fit(tree)]
        soon = None if changing is None or self._hurry else {tensor.data_ptr() for tensor in changing}
        now = [source for source in sources if soon is None or source[1].data_ptr() in soon]
        later = [] if soon is None else [source for source in sources if source[1].data_ptr() not in soon]
        copy([source for source in now if not source[1].is_cuda])
        self._copy_from_gpu(now, later)
        self._copied.clear()
        # Of the tensors still to be copied, how often each was written to; so a change in between is found out.
        self._versions = [tensor._version for _, tensor in later]
        arguments = (step, meta, later, sources, self._on_device)
        self._thread = threading.Thread(target=self._write, args=arguments, name=FINISHED_FIRST, daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Return when all that was submitted may change; raises what went wrong with it so far."""
        if self._thread is None:
            return
        self._copied.wait()
        if self._on_device is not None:
            torch.cuda.current_stream().wait_event(self._on_device)
            self._on_device = None
        if self._error is not None or not self._thread.is_alive():
            self.wait()

    @property
    def writing(self) -> bool:
        """Whether a checkpoint is still on its way to the disk."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Wait until nothing is being written; raises what went wrong, if anything did."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise ExitError(self._words(error), Exit.FAILED) from error

    def _copy_from_gpu(self, now: list[Source], later: list[Source]) -> None:
        """Start copying what lies on a GPU, on a stream beside the one that trains."""
        if not any(tensor.is_cuda for _, tensor in (*now, *later)):
            return
        self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        training = torch.cuda.current_stream()
        self._stream.wait_stream(training)
        with torch.cuda.stream(self._stream):
            for sources in (now, later):
                for place, tensor in sources:
                    if tensor.is_cuda:
                        place.copy_(tensor, non_blocking=True)
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record()
                if sources is now:
                    training.wait_event(event)
        self._on_device = event

    def _write(self, step: int, meta: dict[str, Any], later: list[Source], sources: list[Source], event: Any) -> None:
        start = time.monotonic()
        try:
            copy([source for source in later if not source[1].is_cuda])
            if event is None and self._versions != [tensor._version for _, tensor in later]:
                self._hurry = True
                log.warning("no checkpoint at step %d: %s", step, CHANGED)
                return
            self._copied.set()
            if event is not None:
                event.synchronize()  # the GPU itself waits in `settle`, this thread here, and training's nowhere
            sources.clear()  # tensors that were gathered for this checkpoint alone are let go of
            later.clear()
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
            write(self._folder, step, self._buffers, {**meta, "holder": self._holder}, self._ours)
            if self._ours():
                prune(self._folder, *self._keep)
        except NotOursError:
            pass  # the next vote ends this run, on all processes at the same step
        except BaseException as error:
            self._error = error
        finally:
            self._copied.set()
            self.last_seconds = time.monotonic() - start

    def _words(self, error: BaseException) -> str:
        """What went wrong, what is left, and what to do about it."""
        reason = str(error)
        if isinstance(error, OSError):
            reason = error.strerror or reason
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                need = sum(buffer.size for buffer in self._buffers.values())
                free = shutil.disk_usage(self._folder).free
                reason += f" ({need / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free)"
        saved = steps(self._folder) if self._folder.is_dir() else []
        left = f"the last one, {saved[-1].name}, is whole" if saved else "there is none before it"
        return (
            f"a checkpoint cannot be written to {self._folder}: {reason}; {left}. Check rights, make room there or "
            "lower checkpoint.keep_last, then start again"
        )
