"""Writes checkpoints on a separate thread while training continues, from buffers that are reused."""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainyard.core.exits import FINISHED_FIRST, FULL, STORAGE, ExitError, cause_of
from trainyard.core.storage import StorageError
from trainyard.run.checkpoint import NotOursError, State, is_always_ours, prune, steps, write
from trainyard.run.space import free
from trainyard.run.tensor_file import Buffer, Source, copy

NICENESS = 19  # of the thread that writes: training goes first where there are too few cores
CHANGED = "weights changed in a forward or backward; from now on all is copied before training continues"
log = logging.getLogger("trainyard")


class Writer:
    """Writes checkpoints on a separate thread; training waits only while tensors are copied."""

    def __init__(
        self,
        folder: Path,
        keep_last: int,
        keep_best: int = 0,
        *,
        ours: Callable[[], bool] = is_always_ours,
        holder: str = "",
        staging: Path | None = None,
    ) -> None:
        """`ours` says whether the folder may still be written to; `holder` names who writes, in the manifests.

        Checkpoints are written in `staging` (the lease's folder) until they are whole.
        """
        self._folder = folder
        self._keep = keep_last, keep_best
        self._ours = ours
        self._holder = holder
        self._staging = staging
        self._buffers: dict[str, Buffer] = {}
        self._thread: threading.Thread | None = None
        self._copied = threading.Event()
        self._versions: list[int] = []
        self._hurry = False
        self._on_device: torch.cuda.Event | None = None
        self._stream: torch.cuda.Stream | None = None
        self._error: BaseException | None = None
        self.published: deque[int] = deque()  # steps of whole checkpoints, for those who report them
        self.last_seconds = 0.0

    def submit(self, step: int, state: State, meta: dict[str, Any], changing: Iterable[Tensor] | None = None) -> None:
        """Take the state and start writing it; waits first if the last one is still being written.

        The tensors of `changing` (all, if None) may change as soon as this returns, the others once `settle` has:
        forward and backward change neither the weights nor the optimizer's state, so copying continues through them.
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
            if not isinstance(error, OSError | StorageError):
                raise error
            code = error.code if isinstance(error, StorageError) else cause_of(error).code
            raise ExitError(self._words(error), code) from error

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
            sources.clear()  # frees tensors that were gathered for this checkpoint alone
            later.clear()
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
            meta = {**meta, "holder": self._holder}
            write(self._folder, step, self._buffers, meta, ours=self._ours, staging=self._staging)
            self.published.append(step)
            if self._ours():
                prune(self._folder, *self._keep, self._staging)
        except NotOursError:
            pass  # the next vote ends this run, on all processes at the same step
        except BaseException as error:
            self._error = error
        finally:
            self._copied.set()
            self.last_seconds = time.monotonic() - start

    def _words(self, error: OSError | StorageError) -> str:
        """Return what went wrong, what is left, and what to do about it."""
        if isinstance(error, StorageError) or error.errno in STORAGE:
            return f"a checkpoint cannot be written: {error}"
        reason = error.strerror or str(error)
        if error.errno in FULL:
            need = sum(buffer.size for buffer in self._buffers.values())
            there = free(self._folder)
            reason += f" ({need / 1e6:,.1f} MB needed, {'?' if there is None else f'{there / 1e6:,.1f}'} MB free)"
        saved = steps(self._folder)
        left = f"the last one, {saved[-1].name}, is whole" if saved else "there is none before it"
        return (
            f"a checkpoint cannot be written to {self._folder}: {reason}; {left}. Check rights, make room there or "
            "lower checkpoint.keep_last, then start again"
        )
