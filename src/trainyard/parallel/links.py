"""What the links between GPUs and between nodes should do, for comparison with what was measured.

NVLink's rates are NVIDIA's, from the data sheets of A100, H100, H200 and HGX B200: 600, 900, 900 and 1,800 GB/s in both
directions together. Networks say their rate themselves, under /sys.
"""

import re
from pathlib import Path
from typing import NamedTuple

NVLINK = {"A100-SXM": 300.0, "H100 80GB HBM3": 450.0, "H200": 450.0, "B200": 900.0}  # GB/s each way, by name of the GPU


class LinkRate(NamedTuple):
    """What a link should do each way, in GB/s, and how that is known; 0 where nothing says."""

    rate: float
    source: str


UNKNOWN = LinkRate(0.0, "its rate is not known")


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
