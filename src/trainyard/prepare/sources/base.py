"""The interface of a source, and the counters that it keeps for the progress line."""

import threading
from dataclasses import dataclass, field
from typing import Protocol


class Source(Protocol):
    """One object of known size that does not change while it is read."""

    # How messages name it; never holds credentials or a signed query
    label: str
    # In bytes
    size: int
    # Identifies this state of the object, as well as its server or file system can
    identity: str

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer with the bytes from `offset` on, or raise; safe to call from many threads."""
        ...

    def read_range(self, offset: int, length: int) -> memoryview:
        """Return exactly these bytes or raise."""
        buffer = memoryview(bytearray(length))
        self.read_into(offset, buffer)
        return buffer

    def close(self) -> None:
        """Stop retrying; may be called more than once, and while other threads read."""
        ...


@dataclass
class Traffic:
    """Bytes, requests and retries so far."""

    bytes: int = 0
    requests: int = 0
    retries: int = 0
    last_trouble: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, *, received: int = 0, requests: int = 0) -> None:
        """Count bytes and requests."""
        with self._lock:
            self.bytes += received
            self.requests += requests

    def retry(self, trouble: str) -> None:
        """Count a retry and keep its cause for the progress line."""
        with self._lock:
            self.retries += 1
            self.last_trouble = trouble
