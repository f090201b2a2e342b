"""Measures the transport before training, so that a slow node is named before it slows all others.

All processes do an all-reduce, as in training. A ring is as fast as its slowest link, so that tells nothing of who is
slow: each node then exchanges data with its neighbours in turn, all pairs at once, each GPU with its counterpart there.
A node is as fast as the faster of its pairs, so a slow neighbour does not count against it. On a single node, GPUs take
the place of nodes. Sizes follow from the first all-reduce, so that all of it takes about SECONDS.
"""

import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trainyard.config.sections.running import CommSettings
from trainyard.core.exits import Exit, ExitError
from trainyard.parallel.base import Strategy
from trainyard.parallel.process_group import Group

SECONDS = 10.0
REPEATS = 4  # of which the best counts: other work on a machine delays some
FIRST, MOST = 1 << 20, {"cuda": 256 << 20, "cpu": 8 << 20}  # bytes of a message
NAMED = 0.5  # share of the median below which a node is named
# GB/s each way, by name of the GPU: from NVIDIA's data sheets of A100, H100, H200 and HGX B200, which name both ways
# together (600, 900, 900 and 1,800 GB/s)
NVLINK = {"A100-SXM": 300.0, "H100 80GB HBM3": 450.0, "H200": 450.0, "B200": 900.0}
Pair = tuple[int, int]


class LinkRate(NamedTuple):
    """The expected rate of a link each way, in GB/s, and the source of that; 0 where nothing says."""

    rate: float
    source: str


UNKNOWN = LinkRate(0.0, "its rate is not known")


@dataclass(frozen=True)
class Unit:
    """A node or, on a single node, a GPU, to be compared: its name, its ranks, its link's expected rate."""

    name: str
    ranks: tuple[int, ...]
    link: LinkRate


def check(comm: CommSettings, strategy: Strategy) -> None:
    """Measure and print; every process calls it. Raises ExitError on all of them if comm.probe_least refuses a node."""
    wanted = comm.probe == "always" or (comm.probe == "auto" and strategy.device.type == "cuda")
    if not wanted or strategy.world == 1:
        return
    units = arrange(strategy)
    nccl = isinstance(strategy, Group) and dist.get_backend() == "nccl"
    device = strategy.device if nccl or not isinstance(strategy, Group) else torch.device("cpu")
    strategy.sum(torch.ones(FIRST // 4, device=device))  # connects
    first = max(strategy.gather_objects(all_reduce_seconds(strategy, device, FIRST, 1)))
    size = size_for(first, device.type, strategy.world)
    whole = max(strategy.gather_objects(all_reduce_seconds(strategy, device, size, REPEATS)))
    bus = 2 * (strategy.world - 1) / strategy.world * size / whole / 1e9
    pairs = measure(strategy, units, device, size) if isinstance(strategy, Group) else {}
    if strategy.is_rank0:
        print(describe_rates(strategy.world, size, bus, units, pairs), flush=True)
    if slow := too_slow(units, pairs, max(NAMED, comm.probe_least)):
        message = describe_slow(units, pairs, slow)
        if any(find_best_rate(pairs, unit) < comm.probe_least * find_median_rate(units, pairs) for unit in slow):
            raise ExitError(f"{message}; comm.probe_least = {comm.probe_least} refuses it", Exit.DEVICE)
        if strategy.is_rank0:
            print(f"warning: {message}", flush=True)


def arrange(strategy: Strategy) -> list[Unit]:
    """Return the nodes with their ranks, or the GPUs of a single node."""
    place, cuda = strategy.place, strategy.device.type == "cuda"
    name = torch.cuda.get_device_name(strategy.device) if cuda else ""
    mine = (place.rank - place.local_rank, socket.gethostname(), name, between_nodes())
    found: list[tuple[int, str, str, LinkRate]] = strategy.gather_objects(mine)
    if len({node for node, *_ in found}) == 1:
        kind = "GPU" if cuda else "process"
        return [Unit(f"{kind} {rank} of {host}", (rank,), between_gpus(name))
                for rank, (_, host, name, _) in enumerate(found)]  # fmt: skip
    nodes: dict[int, list[int]] = {}
    for rank, (node, *_) in enumerate(found):
        nodes.setdefault(node, []).append(rank)
    return [Unit(f"{found[node][1]} (ranks {ranks[0]} to {ranks[-1]})", tuple(ranks), found[node][3])
            for node, ranks in nodes.items()]  # fmt: skip


def rounds(count: int) -> list[list[Pair]]:
    """Get rounds in which each of so many units is in at most one pair, and over which it meets both its neighbours."""
    if count == 2:
        return [[(0, 1)]]
    even = [(index, index + 1) for index in range(0, count - 1, 2)]
    odd = [(index, index + 1) for index in range(1, count - 1, 2)]
    last = [(count - 1, 0)]
    return [even, odd + last] if count % 2 == 0 else [even, odd, last]


def size_for(seconds: float, kind: str, world: int) -> int:
    """Bytes of a message such that all of them take about SECONDS, if FIRST bytes took so long over all processes."""
    messages = 4 * (REPEATS + 1)
    return int(min(max(FIRST * SECONDS / messages / max(seconds, 1e-6), FIRST), MOST[kind])) // 4 * 4


def all_reduce_seconds(strategy: Strategy, device: torch.device, size: int, repeats: int) -> float:
    """Return the shortest of a few all-reduces over all processes."""
    tensor = torch.zeros(size // 4, device=device)
    in_place = isinstance(strategy, Group)  # a copy would be counted, too
    return time_action(lambda: dist.all_reduce(tensor) if in_place else strategy.sum(tensor), device, repeats)


def measure(strategy: Strategy, units: Sequence[Unit], device: torch.device, size: int) -> dict[Pair, float]:
    """GB/s each way of each pair of neighbours, over all their GPUs; all processes get all pairs."""
    sent, got = (torch.ones(size // 4, device=device) for _ in range(2))
    mine: dict[Pair, float] = {}
    for pairs in rounds(len(units)):
        strategy.barrier()
        for pair in pairs:
            if (peer := counterpart(units, pair, strategy.rank)) is not None:
                exchange(sent, got, peer)
                seconds = time_action(lambda peer=peer: exchange(sent, got, peer), device, REPEATS)  # type: ignore[misc]
                mine[pair] = size / seconds / 1e9
    total: dict[Pair, float] = {}
    for rank, found in enumerate(strategy.gather_objects(mine)):
        for pair, rate in found.items():
            if rank in units[pair[0]].ranks:  # its counterpart has measured the same
                total[pair] = total.get(pair, 0.0) + rate
    return total


def counterpart(units: Sequence[Unit], pair: Pair, rank: int) -> int | None:
    """Return the other unit's rank with which a rank exchanges data; None if it is in neither unit, or left over."""
    for here, there in (pair, pair[::-1]):
        if rank in units[here].ranks:
            lane = units[here].ranks.index(rank)
            return units[there].ranks[lane] if lane < len(units[there].ranks) else None
    return None


def exchange(sent: Tensor, got: Tensor, peer: int) -> None:
    """Send to another rank and receive from it at the same time."""
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, got, peer)]):
        work.wait()


def time_action(action: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the shortest time that an action took on the device, in seconds."""
    shortest = float("inf")
    for _ in range(repeats):
        _settle(device)
        begin = time.perf_counter()
        action()
        _settle(device)
        shortest = min(shortest, time.perf_counter() - begin)
    return shortest


def find_best_rate(pairs: Mapping[Pair, float], unit: int) -> float:
    """Return the rate of a unit: that of the faster of its pairs."""
    return max((rate for pair, rate in pairs.items() if unit in pair), default=0.0)


def find_median_rate(units: Sequence[Unit], pairs: Mapping[Pair, float]) -> float:
    """Return the median unit's rate."""
    return median(find_best_rate(pairs, unit) for unit in range(len(units)))


def too_slow(units: Sequence[Unit], pairs: Mapping[Pair, float], share: float) -> list[int]:
    """Return the units below a share of the median; none of two, whose only link says nothing of which one is slow."""
    if len(units) < 3 or not pairs:
        return []
    return [unit for unit in range(len(units)) if find_best_rate(pairs, unit) < share * find_median_rate(units, pairs)]


def describe_slow(units: Sequence[Unit], pairs: Mapping[Pair, float], slow: Sequence[int]) -> str:
    """Return the message that names the slow units and what to look at."""
    shown = ", ".join(f"{units[unit].name}: {find_best_rate(pairs, unit):.2f} GB/s" for unit in slow[:5])
    median_rate = find_median_rate(units, pairs)
    return (
        f"far slower than the others, whose median is {median_rate:.2f} GB/s each way: {shown}. All wait for "
        "the slowest in each step: see cables and ports (`ibstat`, `nvidia-smi nvlink -s`), clocks and other jobs "
        "there, or cordon it"
    )


def describe_rates(world: int, size: int, bus: float, units: Sequence[Unit], pairs: Mapping[Pair, float]) -> str:
    """Return what was measured, beside what the link should do."""
    text = f"transport: all-reduce of {size / (1 << 20):.0f} MiB over {world} processes: {bus:.2f} GB/s on the bus"
    if not pairs:
        return text
    slowest = min(range(len(units)), key=lambda unit: find_best_rate(pairs, unit))
    kind = "nodes" if len(units) < world or len(units[0].ranks) > 1 else "neighbours"
    text += f"; between {kind} {find_median_rate(units, pairs):.2f} GB/s each way"
    if len(units) > 2:
        text += f", the slowest {find_best_rate(pairs, slowest):.2f} ({units[slowest].name})"
    link = units[slowest].link
    if not link.rate:
        return f"{text}; what the link should do is not known here"
    share = find_median_rate(units, pairs) / link.rate
    return f"{text}; the link should do {link.rate:.4g} GB/s ({link.source}), this is {share:.0%}"


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def between_gpus(name: str) -> LinkRate:
    """Return the link between GPUs of one node, from their name."""
    rate = next((rate for part, rate in NVLINK.items() if part in name), 0.0)
    return LinkRate(rate, "NVLink, by NVIDIA's data sheet") if rate else UNKNOWN


def between_nodes(root: Path = Path("/")) -> LinkRate:
    """Return the links of this pod to other nodes: active RDMA ports, else the fastest real network card."""
    found = sorted((root / "sys/class/infiniband").glob("*/ports/*"))
    rates = [re.match(r"([\d.]+) Gb/sec", _read(port / "rate")) for port in found if "ACTIVE" in _read(port / "state")]
    ports = [float(rate[1]) for rate in rates if rate]
    if ports:
        return LinkRate(sum(ports) / 8, f"{len(ports)} RDMA port{'s' * (len(ports) > 1)}, {sum(ports):g} Gb/s in all")
    # a virtual interface, such as a pod's eth0, has no device, and a speed that means nothing
    cards = [path for path in sorted((root / "sys/class/net").glob("*")) if (path / "device").exists()]
    speeds = [int(text) for path in cards if (text := _read(path / "speed")).isdigit()]
    return LinkRate(max(speeds) / 8000, f"a network card of {max(speeds) / 1000:g} Gb/s") if speeds else UNKNOWN


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # a card that is down has no speed
        return ""
