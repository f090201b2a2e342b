"""Binds a process to the cores beside its GPU, so that batches do not cross the link between the CPUs.

Linux places memory on the node whose core first writes to it, so the threads that prepare batches decide where these
lie. They inherit the cores of the thread that starts them: the binding comes before the loader, and before the group of
processes, whose threads move gradients.
"""

import os
from collections.abc import Set
from pathlib import Path
from typing import Any

import torch

DEVICES = Path("/sys/bus/pci/devices")
NODES = Path("/sys/devices/system/node")


def bind(device: torch.device, devices: Path = DEVICES, nodes: Path = NODES) -> list[int]:
    """Bind this thread, and those that it starts, to the cores beside its GPU; returns them, none if unbound.

    It stays unbound where the kernel does not say which these are, or this process may use none of them.
    """
    address = pci_address(torch.cuda.get_device_properties(device))
    cores = sorted(os.sched_getaffinity(0) & cores_beside(address, devices, nodes)) if address else []
    if cores:
        os.sched_setaffinity(0, cores)
    return cores


def pci_address(properties: Any) -> str:
    """Return a GPU's address on the bus, as /sys names it; empty where torch does not tell (before 2.8)."""
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if any(not isinstance(number, int) for number in numbers):
        return ""
    domain, bus, slot = numbers
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"


def cores_beside(address: str, devices: Path = DEVICES, nodes: Path = NODES) -> Set[int]:
    """Return the cores of the NUMA node of a PCI device; none where there is one node, or the kernel does not know."""
    try:
        node = int((devices / address / "numa_node").read_text())
        return parse_list((nodes / f"node{node}" / "cpulist").read_text()) if node >= 0 else set()
    except (OSError, ValueError):
        return set()


def parse_list(text: str) -> set[int]:
    """Return the numbers of a list such as `0-3,8`; raises ValueError."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found |= set(range(int(first), int(last or first) + 1))
    return found
