"""The sign that somebody prepares a folder, which those who wait for the folder see on the shared claim.

A trainer that waits in a queue's quota must know whether waiting makes sense: the preparation itself may stand in the
same queue behind it. So a preparation touches a file while it lives, and who waits looks whether anything changes. No
clocks are compared: a change is a change on any machine.
"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from trainers.shards.manifest import WORK

FILE = f"{WORK}/alive"
EVERY = 10.0  # seconds between touches


@contextlib.contextmanager
def beating(root: Path, every: float = EVERY) -> Iterator[None]:
    """Touch the folder's sign every few seconds while the block runs, and remove it afterwards.

    Where it cannot be written, nothing is said: the preparation itself will say what is wrong.
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
    """What changes while somebody prepares a folder: the time of the sign (ns, 0 without one), and finished shards.

    Shards count too, for a folder that is copied to the claim, or prepared by a version without the sign.
    """
    try:
        touched = (root / FILE).stat().st_mtime_ns
    except OSError:
        touched = 0
    return touched, sum(1 for _ in root.glob("*/shard-*.tar"))
