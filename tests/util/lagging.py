"""A GPU that runs behind its host: what its streams are asked for is done later, in any order that they allow.

It takes the place of torch.cuda's streams and events, and of copies from a GPU. A seed draws which stream goes on, and
when; a stream does its work in turn, and goes on from `wait_event` once the event's own stream has come to it. Whatever
does not wait for what it needs is found by some seed.
"""

import contextlib
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import patience


class Event:
    """A point in a stream's work."""

    def __init__(self, gpu: "LaggingGpu") -> None:
        self._gpu = gpu
        self.done = False

    def record(self, stream: "Stream | None" = None) -> None:
        """Put the point behind what the stream was asked for so far."""
        self.done = False
        (stream or self._gpu.current()).ask(self._reach)

    def _reach(self) -> None:
        self.done = True

    def query(self) -> bool:
        """Whether the stream has come to it."""
        return self.done

    def synchronize(self) -> None:
        """Wait until the stream has come to it."""
        assert self._gpu.free.wait(patience.IDLE)
        self._gpu.run_until(lambda: self.done)


class Stream:
    """Work in its order; an event in it is waited for."""

    def __init__(self, gpu: "LaggingGpu") -> None:
        self._gpu = gpu
        self.asked: deque[Callable[[], Any] | Event] = deque()
        gpu.streams.append(self)

    def ask(self, work: Callable[[], Any] | Event) -> None:
        """Put work behind what was asked before."""
        with self._gpu.lock:
            self.asked.append(work)
            self._gpu.go_on()

    def wait_event(self, event: Event) -> None:
        """Let what comes after this wait for an event."""
        self.ask(event)

    def wait_stream(self, other: "Stream") -> None:
        """Let what comes after this wait for all that another stream was asked for."""
        self.wait_event(other.record_event())

    def record_event(self) -> Event:
        """Return a point behind what was asked so far."""
        event = Event(self._gpu)
        event.record(self)
        return event


class LaggingGpu:
    """The streams; the first is the one that trains. Nothing is waited for before `free` is set."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._eager = self._chance.choice((0.0, 0.3, 0.7))  # how often it does something while it is asked
        self._here = threading.local()
        self.lock, self.free = threading.RLock(), threading.Event()
        self.streams: list[Stream] = []
        self.training = Stream(self)

    def current(self) -> Stream:
        """Return the stream of this thread."""
        found: Stream = getattr(self._here, "stream", self.training)
        return found

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """Within this, a stream is this thread's."""
        before, self._here.stream = self.current(), stream
        try:
            yield
        finally:
            self._here.stream = before

    def tensor(self, values: Tensor) -> "OnGpu":
        """Return a tensor that lies on the GPU."""
        made = values.as_subclass(OnGpu)
        made.gpu = self
        return made

    def do(self, work: Callable[[Tensor], Any], tensor: "OnGpu") -> None:
        """Ask this thread's stream for work on a tensor."""
        plain = tensor.as_subclass(Tensor)
        self.current().ask(lambda: work(plain))

    def go_on(self) -> None:
        """Do some of what can be done, or nothing."""
        while self._chance.random() < self._eager and self._step():
            pass

    def run_until(self, done: Callable[[], bool]) -> None:
        """Work until something is so."""
        with self.lock:
            while not done():
                assert self._step(), "the streams wait for each other"

    def _step(self) -> bool:
        """Do the next of one stream that does not wait; whether there was one."""
        able = [stream for stream in self.streams if stream.asked and not self._waits(stream.asked[0])]
        if not able:
            return False
        work = self._chance.choice(able).asked.popleft()
        if not isinstance(work, Event):
            work()
        return True

    @staticmethod
    def _waits(work: Callable[[], Any] | Event) -> bool:
        return isinstance(work, Event) and not work.done


class OnGpu(Tensor):
    """A tensor on the GPU: it is read when its stream comes to it."""

    is_cuda = True  # type: ignore[assignment]
    gpu: LaggingGpu

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Put off copies to the host that need not be waited for; refuse others."""
        if func is Tensor.copy_ and isinstance(args[1], OnGpu):
            assert (kwargs or {}).get("non_blocking"), "the host waits for the GPU"
            target, (gpu, source) = args[0], (args[1].gpu, args[1].as_subclass(Tensor))
            gpu.current().ask(lambda: target.copy_(source))
            return target
        found = super().__torch_function__(func, types, args, kwargs or {})
        whose = [one for one in args if isinstance(one, OnGpu)]
        if isinstance(found, OnGpu) and whose:
            found.gpu = whose[0].gpu
        return found


def take_the_place(patch: pytest.MonkeyPatch, gpu: LaggingGpu) -> None:
    """Have torch.cuda mean this GPU; pinned memory is plain memory."""
    empty = torch.empty
    patch.setattr(torch, "empty", lambda *size, **how: empty(*size, **{**how, "pin_memory": False}))
    patch.setattr(torch.cuda, "Stream", lambda *_: Stream(gpu))
    patch.setattr(torch.cuda, "Event", lambda **_: Event(gpu))
    patch.setattr(torch.cuda, "stream", gpu.on)
    patch.setattr(torch.cuda, "current_stream", lambda *_: gpu.current())
