"""Energy that a run uses, from the counters that GPUs and CPUs keep.

GPUs: NVML's total energy of a board, which boards from Volta on count. CPUs: Linux' powercap counters of whole
packages (RAPL; Intel's, and AMD's by the same driver), of everything that runs on the node, where this process may read
them, which since CVE-2020-8694 only root may. Fans, memory boards, disks and networks are not in it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

KINDS = ("gpus", "processors")
UNKNOWN = math.nan
POWERCAP = Path("/sys/class/powercap")
Read = Callable[[], float]


@dataclass
class Counter:
    """A counter that only grows, and begins again from 0 at `wrap`; in joules."""

    read: Read
    wrap: float = math.inf
    used: float = 0.0
    last: float = field(init=False)

    def __post_init__(self) -> None:
        """Count from now on."""
        self.last = self.read()

    def advance(self) -> float:
        """Joules since the begin; to be called more often than the counter wraps, every half hour at 150 W."""
        now = self.read()
        self.used += now - self.last if now >= self.last else self.wrap - self.last + now
        self.last = now
        return self.used


@dataclass(frozen=True)
class Meter:
    """The counters that a process reads for the run, by kind; None: there is none that it may read."""

    counters: Mapping[str, list[Counter] | None]

    def read(self) -> list[float]:
        """Joules of this process's share since the begin, in the order of KINDS; UNKNOWN where they are not counted."""
        return [self._of(kind) for kind in KINDS]

    def _of(self, kind: str) -> float:
        counters = self.counters[kind]
        try:
            return UNKNOWN if counters is None else sum(counter.advance() for counter in counters)
        except (OSError, ValueError):
            return UNKNOWN


def meter(device: torch.device, first_on_node: bool) -> Meter:
    """Return what this process counts: its own GPU and, for all processes of its node, the CPUs."""
    return Meter({
        "gpus": _gpu(device) if device.type == "cuda" else [],
        "processors": _processors(POWERCAP) if first_on_node else [],
    })  # fmt: skip


def known(joules: Mapping[str, float]) -> dict[str, float]:
    """Return what was counted, rounded to joules; GPUs that a run has none of are no finding."""
    return {kind: round(value) for kind, value in joules.items() if math.isfinite(value) and value > 0}


def _processors(root: Path) -> list[Counter] | None:
    """One counter of each package; None where one cannot be read."""
    try:
        packages = [zone for zone in root.glob("*:*") if (zone / "name").read_text().startswith("package")]
        return [_zone(zone) for zone in packages] or None
    except (OSError, ValueError):
        return None


def _zone(zone: Path) -> Counter:
    def read() -> float:
        return int((zone / "energy_uj").read_text()) / 1e6

    return Counter(read, int((zone / "max_energy_range_uj").read_text()) / 1e6)


def _gpu(device: torch.device) -> list[Counter] | None:
    """Find a GPU's board; None without NVML's Python module, or for a board (or a part of one) that does not count."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()  # type: ignore[no-untyped-call]
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        energy: Any = pynvml.nvmlDeviceGetTotalEnergyConsumption
        return [Counter(lambda: energy(handle) / 1e3)]
    except (pynvml.NVMLError, AttributeError):
        return None
