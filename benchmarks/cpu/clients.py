"""What grows with the number of clients in a run's own servers: peers, rendezvous, heartbeats and lease.

    python benchmarks/cpu/clients.py [OUT.json] [--clients 8 64 512 4096]

The servers are those of a run. Clients are threads and sockets of this machine, so the figures are processor time, and
no network's. The run directory is in memory. Growth is the power of the number of clients by which a figure grew since
the size before: 1 is linear. What grows faster is named below the table.

peers        the first pod answers each pod's question; with up to 64 pods, each pod asks all others
store        all ranks connect to the store of a rendezvous without elasticity, and each sets and reads a key
rendezvous   up to 64 nodes meet in an elastic rendezvous (c10d)
network      one rank asks all others for their heartbeats; at a hang each rank does
files        all ranks write their heartbeat, and one reads all
lease        one process takes the directory, and all ranks look whether the run still has it
"""

import argparse
import json
import math
import multiprocessing
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.pod import peers, presence
from trainyard.run.lease import Lease
from trainyard.telemetry import beats

SIZES = (8, 64, 512, 4096)
MOST_NODES = 64  # in an elastic rendezvous: of 512, all threads of this machine, it takes minutes of processor time
LOOK_SECONDS = 5.0  # that a rank gives the others to answer (telemetry/watchdog.py)
STACK = 1 << 18  # bytes of a thread's stack
LINEAR = 1.15
LITTLE = 0.05  # seconds; less says nothing about growth
TOKEN = "clients"
AT_ONCE = 32  # clients that ask at a time
FILES = 200  # that are open beside both ends of each client's connection
LONG = timedelta(seconds=600)


class Figure(NamedTuple):
    """One figure of a part, in `unit`, for so many clients."""

    part: str
    what: str
    clients: int
    value: float
    unit: str


Part = Callable[[int], list[Figure]]


def spent() -> float:
    """Return the processor seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def timed(action: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds and the processor seconds that something takes."""
    wall, used = time.monotonic(), spent()
    action()
    return time.monotonic() - wall, spent() - used


def ask_first_pod(count: int) -> list[Figure]:
    """All pods ask the first one, as they do until it is ready."""
    names = tuple(f"job-worker-{number}" for number in range(count))
    each = [len(peers.PeerPlan("job", name, names, count, 1, 1, 1.0).choose_peers()) for name in names]
    listener = presence.Listener("job", 0, "127.0.0.1")
    failed = []

    def ask(_: int) -> None:
        if why := presence.ask("127.0.0.1", listener.port, "job", presence.Peer()).why:
            failed.append(why)

    def all_ask() -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(ask, range(count)))

    wall, used = timed(all_ask)
    listener.close()
    return [
        Figure("peers", "first pod: answers all", count, wall, "s"),
        Figure("peers", "processor time, both sides", count, used, "s"),
        Figure("peers", "questions of all pods in a round", count, sum(each), ""),
        Figure("peers", "not answered", count, len(failed), ""),
    ]


def meet_in_store(count: int) -> list[Figure]:
    """All ranks connect to the store of a static rendezvous, set a key, and read their neighbour's."""
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, None, True, LONG)
    clients: list[Any] = []
    numbers = range(count)

    def connect() -> None:
        clients.extend(pool.map(lambda _: TCPStore("127.0.0.1", server.port, None, False, LONG), numbers))

    def arrive(number: int) -> None:
        clients[number].set(f"rank/{number}", "here")
        clients[number].add("arrived", 1)

    def exchange() -> None:
        list(pool.map(arrive, numbers))
        list(pool.map(lambda number: clients[number].get(f"rank/{(number + 1) % count}"), numbers))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        connected, exchanged = timed(connect), timed(exchange)
    assert server.add("arrived", 0) == count
    return [
        Figure("store", "all connect", count, connected[0], "s"),
        Figure("store", "all set a key and read one", count, exchanged[0], "s"),
        Figure("store", "processor time, both sides", count, connected[1] + exchanged[1], "s"),
    ]


def meet_elastically(count: int) -> list[Figure]:
    """All nodes meet in torch's elastic rendezvous, each with a store of its own connection."""
    if count > MOST_NODES:
        return []
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

    server = TCPStore("127.0.0.1", 0, None, True, LONG)
    patient = RendezvousTimeout(join=LONG, last_call=timedelta(seconds=1), close=LONG, heartbeat=LONG)
    ranks = []

    def join() -> None:
        store = TCPStore("127.0.0.1", server.port, None, False, LONG)
        backend = C10dRendezvousBackend(store, "run")
        handler = DynamicRendezvousHandler.from_backend("run", store, backend, count, count, timeout=patient)
        ranks.append(handler.next_rendezvous().rank)

    wall, used = timed(lambda: in_threads(count, join))
    assert sorted(ranks) == list(range(count))
    return [
        Figure("rendezvous", "all nodes have met", count, wall, "s"),
        Figure("rendezvous", "processor time, all nodes", count, used, "s"),
    ]


def in_threads(count: int, action: Callable[[], None]) -> None:
    """Do the same in so many threads at once."""
    threads = [threading.Thread(target=action) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def heartbeat(rank: int) -> beats.Heartbeat:
    """Return the heartbeat of a rank that waits for others: with its stack, as at a hang."""
    stack = [f"/opt/trainyard/src/trainyard/training/loop.py:{line} next_step" for line in range(20)]
    return {
        "rank": rank, "host": f"job-worker-{rank}", "pid": 7, "what": "step", "step": 1000, "beats": 3000,
        "waited_seconds": 10.0, "time": 1.0, "allowed": 60.0, "stack": stack,
    }  # fmt: skip


def serve_heartbeats(count: int, told: Connection) -> None:
    """Be all ranks but the first: each answers on a socket of its own; ends when told."""
    threading.stack_size(STACK)
    addresses = []

    def exchange(mine: beats.Addressed) -> list[beats.Addressed]:
        addresses.append(mine)
        return [("127.0.0.1", 9, TOKEN)]

    for rank in range(1, count):
        beats.Answers(rank, exchange, lambda rank=rank: heartbeat(rank))  # type: ignore[misc]
    told.send(addresses)
    told.recv()


def ask_over_network(count: int) -> list[Figure]:
    """One rank asks all others for their heartbeats."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    child = multiprocessing.get_context("spawn").Process(target=serve_heartbeats, args=(count, there))
    child.start()
    there.close()  # so that a child that fails is known
    addresses = here.recv()
    asking = beats.Answers(0, lambda mine: [(mine[0], mine[1], TOKEN), *addresses], lambda: heartbeat(0))
    found: dict[int, Any] = {}
    wall, used = timed(lambda: found.update(asking.ask(LOOK_SECONDS)))
    asking.close()
    here.send("end")
    child.join()
    return [
        Figure("network", "one rank has asked all", count, wall, "s"),
        Figure("network", "its processor time", count, used, "s"),
        Figure("network", "processor time of a look by all ranks", count, used * count, "s"),
        Figure("network", "did not answer", count, count - 1 - len(found), ""),
    ]


def beat_in_files(count: int) -> list[Figure]:
    """All ranks write their heartbeat, one after the other, and one reads all."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        paths = [Path(folder, "heartbeats", f"rank-{rank}.json") for rank in range(count)]
        written = timed(lambda: [beats.replace(path, heartbeat(rank), None) for rank, path in enumerate(paths)])
        read = timed(lambda: [beats.read(path) for path in paths])
        last = timed(lambda: beats.last_alive(Path(folder), 2.0))
    return [
        Figure("files", "all write", count, written[0], "s"),
        Figure("files", "one reads all", count, read[0], "s"),
        Figure("files", "last sign of life, at a start", count, last[0], "s"),
    ]


def hold_lease(count: int) -> list[Figure]:
    """One process takes the run directory, and all ranks look whether it is still the run's."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        root = Path(folder)
        (root / "checkpoints").mkdir()
        first = Lease(root)
        taken = timed(lambda: first.take(root / "checkpoints"))
        ranks = [Lease(root) for _ in range(count)]
        for rank in ranks:
            rank.join(first.number)
        looked = timed(lambda: [rank.seems_held() for rank in ranks])
        assert all(rank.seems_held() for rank in ranks)
        first.release()
    return [Figure("lease", "taken", count, taken[0], "s"), Figure("lease", "all look at it", count, looked[0], "s")]


PARTS: tuple[Part, ...] = (ask_first_pod, meet_in_store, meet_elastically, ask_over_network, beat_in_files, hold_lease)


def measure(sizes: Sequence[int]) -> list[Figure]:
    """Return all figures, part by part."""
    threading.stack_size(STACK)
    found = []
    for part in PARTS:
        for count in sizes:
            found += part(count)
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def growth(figures: Sequence[Figure]) -> float | None:
    """Return the power by which a figure grows between its last two sizes; None where it is too small to tell."""
    known = [one for one in figures if one.value >= (LITTLE if one.unit else 1)]
    if len(known) < 2:
        return None
    before, last = known[-2:]
    return math.log(last.value / before.value) / math.log(last.clients / before.clients)


def table(figures: Sequence[Figure], sizes: Sequence[int]) -> str:
    """Lay out the figures as a table in Markdown, and name what grows faster than linearly."""
    lines = ["| part | what | " + " | ".join(f"{size:,}" for size in sizes) + " | growth |"]
    lines.append("| --- | --- |" + " --- |" * (len(sizes) + 1))
    faster = []
    for part, what in dict.fromkeys((one.part, one.what) for one in figures):
        mine = [one for one in figures if (one.part, one.what) == (part, what)]
        by_size = {one.clients: f"{one.value:.3g} {one.unit}".strip() for one in mine}
        power = growth(mine)
        faster += [f"{part}, {what} (power {power:.2f})"] if power is not None and power > LINEAR else []
        cells = [by_size.get(size, "-") for size in sizes]
        lines.append(f"| {part} | {what} | {' | '.join(cells)} | {'-' if power is None else f'{power:.2f}'} |")
    return "\n".join([*lines, "", f"Grows faster than linearly: {'; '.join(faster) or 'nothing'}."])


def allow_files(clients: int) -> str:
    """Let this process and its children open a file for each end of a connection; return why not, if it may not."""
    needed, (soft, hard) = 2 * clients + FILES, resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        return f"{clients} clients need {needed} open files, and {hard} are allowed: raise ulimit -Hn, or name fewer"
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return ""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", help="write the figures as JSON, too")
    parser.add_argument("--clients", type=int, nargs="+", default=list(SIZES), metavar="N", help="numbers of clients")
    asked = parser.parse_args()
    if why := allow_files(max(asked.clients)):
        parser.error(f"--clients: {why}")
    figures = measure(asked.clients)
    if asked.out:
        asked.out.write_text(json.dumps([one._asdict() for one in figures], indent=1) + "\n")
    print(table(figures, asked.clients))


if __name__ == "__main__":
    main()
