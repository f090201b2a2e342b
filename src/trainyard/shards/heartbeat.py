"""The heartbeat of a preparation: a file on the shared claim that waiting trainers watch.

A trainer that waits for data holds quota that the preparation may need, so it must know whether one is running. A
preparation touches a file while it runs, and a waiting trainer checks whether the file changes. Clocks are not
compared: a change is visible on any machine.
"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from trainyard.shards.manifest import SPLITS, WORK

FILE = f"{WORK}/alive"
EVERY = 10.0  # seconds between touches


@contextlib.contextmanager
def beating(root: Path, every: float = EVERY) -> Iterator[None]:
    """Touch the folder's heartbeat every few seconds while the block runs, and remove it afterwards.

    Errors are ignored: where it cannot be written, the preparation itself fails and says why.
    """
    path, ended = root / FILE, threading.Event()

    def beat() -> None:
        while True:
            with contextlib.suppress(OSError):
                path.touch()
            if ended.wait(every):
                return

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def signs(root: Path) -> tuple[int, int]:
    """Return what changes during a preparation: the heartbeat's time (ns, 0 without one), and the finished shards.

    Shards count too, for a folder that is copied to the claim, or prepared by a version without the heartbeat.
    """
    try:
        touched = (root / FILE).stat().st_mtime_ns
    except OSError:
        touched = 0
    return touched, count_shards(root)


def count_shards(root: Path) -> int:
    """Return the number of finished shards. Other folders are not looked into: a preparation that ends removes its own.

    pathlib raises an error where a folder goes while it is listed.
    """
    return sum(1 for split in SPLITS for _ in (root / split).glob("shard-*.tar"))
