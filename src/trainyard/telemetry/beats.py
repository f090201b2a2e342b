"""Exchanges heartbeats between processes: they ask each other over the network, and read files in the run directory.

Neither way blocks the thread that watches. `Files` works on a thread of its own, since a call to storage may never
return; it can name the call that it waits for. `Answers` sends a rank's newest heartbeat to all who ask with the run's
token, by UDP, so that ranks see each other where storage hangs; where a network lets no such packets pass, the files
remain.
"""

import contextlib
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from trainyard.core.files import fits, parse_json, peek_json
from trainyard.core.storage import storage

log = logging.getLogger("trainyard")

LARGEST = 1 << 16  # bytes of a datagram
ASK_AGAIN = 0.3  # seconds
Heartbeat = dict[str, Any]
NUMBER, COUNT, TEXT = (int, float), (int,), (str,)
NEEDED = {"rank": COUNT, "host": TEXT, "pid": COUNT, "what": TEXT, "step": COUNT, "beats": COUNT, "time": NUMBER}
FURTHER = {
    "previous": NUMBER, "waited_seconds": NUMBER, "allowed": NUMBER, "stack": (list,), "storage": TEXT, "done": (bool,),
}  # fmt: skip
Addressed = tuple[str, int, str]  # address, port, token


class Files:
    """Heartbeats in files, `heartbeats/rank-R.json`, written and read on a thread of its own."""

    def __init__(self, directory: Path, rank: int, staging: Path | None) -> None:
        self._folder, self._rank, self._staging = directory / "heartbeats", rank, staging
        self._changed = threading.Condition()
        self._offered: Heartbeat | None = None
        self._closed = False
        self._wanted: list[int] | None = None
        self._found: dict[int, Heartbeat] = {}
        self._call: tuple[Path, float] | None = None
        self._thread = threading.Thread(target=self._work, name="heartbeats", daemon=True)
        self._thread.start()

    def offer(self, beat: Heartbeat) -> None:
        """Have a heartbeat written, in place of one that still waits."""
        with self._changed:
            self._offered = beat
            self._changed.notify_all()

    def read(self, ranks: list[int], seconds: float) -> dict[int, Heartbeat]:
        """Read the heartbeats of some ranks; {} where there is no file or storage does not answer within `seconds`."""
        with self._changed:
            self._wanted, self._found = ranks, {}
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._found or not ranks, seconds)
            return {rank: self._found.get(rank, {}) for rank in ranks}

    def stuck(self) -> tuple[str, float]:
        """Return the file whose call has not returned, and for how many seconds; "" and 0 if there is none."""
        call = self._call
        return (str(call[0]), time.monotonic() - call[1]) if call else ("", 0.0)

    def close(self, seconds: float) -> None:
        """Write what was offered, within `seconds` at most."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(seconds)

    def _work(self) -> None:
        own = self._path(self._rank)
        # of the start before this one, for the time that was lost between them
        previous = float(self._read(own).get("time", 0))
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._offered or self._wanted or self._closed)
                beat, wanted, closed = self._offered, self._wanted, self._closed
                self._offered = self._wanted = None
            if beat:
                self._write(own, {**beat, "previous": previous})
            if wanted:
                found = {rank: self._read(self._path(rank)) for rank in wanted}
                with self._changed:
                    self._found = found
                    self._changed.notify_all()
            if closed:
                return

    def _write(self, path: Path, beat: Heartbeat) -> None:
        """Write a heartbeat; a full or failing disk costs no run."""
        self._call = path, time.monotonic()
        try:
            replace(path, beat, self._staging)
        except OSError as error:
            log.warning("heartbeat: %s", error)
        finally:
            self._call = None

    def _read(self, path: Path) -> Heartbeat:
        self._call = path, time.monotonic()
        try:
            return read(path)
        finally:
            self._call = None

    def _path(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.json"


class Answers:
    """Sends this rank's heartbeat to others that ask, and asks them."""

    def __init__(self, rank: int, exchange: Callable[[Any], list[Any]], beat: Callable[[], Heartbeat]) -> None:
        """`exchange` gives all ranks' values of one; `beat` gives the newest heartbeat, and is called on a thread."""
        family, address = own_address()
        self._rank, self._beat, self._address = rank, beat, address
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.bind(("", 0))
        mine: Addressed = (address, self._socket.getsockname()[1], secrets.token_hex(16))
        everyone: list[Addressed] = exchange(mine)
        self._token = everyone[0][2]
        self._places = {number: (host, port) for number, (host, port, _) in enumerate(everyone) if number != rank}
        threading.Thread(target=self._serve, name="answers", daemon=True).start()

    def reach_another(self, seconds: float) -> bool:
        """Whether the next rank, on another host where there is one, answers within `seconds`; True for a lone rank."""
        following = sorted(self._places, key=lambda rank: (rank < self._rank, rank))
        elsewhere = [rank for rank in following if self._places[rank][0] != self._address]
        chosen = (elsewhere or following)[:1]
        return not chosen or bool(self.ask(seconds, chosen))

    def ask(self, seconds: float, ranks: Iterable[int] | None = None) -> dict[int, Heartbeat]:
        """Return the heartbeats of the other ranks, or of `ranks`, that answer within `seconds`."""
        found: dict[int, Heartbeat] = {}
        asked = self._places.keys() if ranks is None else set(ranks)
        question = json.dumps({"token": self._token, "asks": self._rank}).encode()
        deadline = time.monotonic() + seconds
        with socket.socket(self._socket.family, socket.SOCK_DGRAM) as asking:
            asking.settimeout(ASK_AGAIN)
            while len(found) < len(asked) and time.monotonic() < deadline:
                for rank in asked - found.keys():
                    with contextlib.suppress(OSError):  # its host is gone, or its name
                        asking.sendto(question, self._places[rank])
                with contextlib.suppress(TimeoutError):
                    while len(found) < len(asked):
                        if answer := self._valid(asking.recv(LARGEST)):
                            found[int(answer["rank"])] = answer["beat"]
        return found

    def close(self) -> None:
        """Answer no more."""
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                data, asker = self._socket.recvfrom(LARGEST)
            except OSError:
                return
            if self._valid(data) is None:
                continue
            answer = {"token": self._token, "rank": self._rank, "beat": self._beat()}
            with contextlib.suppress(OSError):
                self._socket.sendto(json.dumps(answer).encode(), asker)

    def _valid(self, data: bytes) -> dict[str, Any] | None:
        """Return a datagram's content, if it carries the run's token."""
        with contextlib.suppress(ValueError):
            message = parse_json(data)
            # As bytes: of text it compares ASCII alone, and anybody may send a datagram
            if isinstance(message, dict) and secrets.compare_digest(
                str(message.get("token")).encode(), self._token.encode()
            ):
                return message
        return None


def own_address() -> tuple[socket.AddressFamily, str]:
    """Return the address of this host's name, which in a pod is the pod's; loopback where it has none."""
    try:
        family, _, _, _, place = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_DGRAM)[0]
        return family, str(place[0])
    except OSError:
        return socket.AF_INET, "127.0.0.1"


def replace(path: Path, value: Any, staging: Path | None) -> None:
    """Write JSON by way of `staging` (the lease's folder), unless another job has the run directory; raises OSError.

    Without fsync, since only the living read it.
    """
    if staging and not staging.is_dir():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write_file(path, (json.dumps(value) + "\n").encode(), durable=False, via=staging)


def read(path: Path) -> Heartbeat:
    """Return a heartbeat's file; {} where there is none, or none that can be one."""
    beat = peek_json(path)
    return beat if NEEDED.keys() <= beat.keys() and fits(beat, NEEDED | FURTHER) else {}


def last_alive(directory: Path, before: float) -> float:
    """When a process of the run last wrote a heartbeat before a moment, in Unix seconds; 0 if never."""
    beats = [peek_json(path) for path in (directory / "heartbeats").glob("rank-*.json")]
    keys = ("time", "previous")
    times = [float(beat.get(key, 0)) for beat in beats if fits(beat, dict.fromkeys(keys, NUMBER)) for key in keys]
    return max((moment for moment in times if moment < before), default=0.0)
