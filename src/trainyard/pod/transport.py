"""Checks that pods use the transport that was asked for, because NCCL falls back from RDMA to TCP silently.

Before training, this pod's devices are checked; once NCCL has chosen a transport, its choice. TRAINYARD_TRANSPORT is
`rdma` where the chart's values ask for an RDMA device.
"""

import os
import re
import resource
import sys
import threading
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from trainyard.core.exits import Exit, ExitError

IPC_LOCK = 14  # number of the capability, capabilities(7)
ENOUGH_LOCKED = 64 << 20  # bytes; below it NCCL's buffers cannot be registered
NCCL_LOG = "nccl.%h.%p.log"  # NCCL fills in host and process
# NCCL's messages on its choice, with NCCL_DEBUG=INFO
CHOSEN = re.compile(r"NCCL INFO (?:Using network (\S+)|NET/(Socket) : Using)")


def check(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> None:
    """Raise UserError, naming the cause, if RDMA was asked for and this pod lacks it. `root` holds sys/ and proc/."""
    if environ.get("TRAINYARD_TRANSPORT") != "rdma":
        return
    for name, value in (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket")):
        if environ.get(name) == value:
            raise ExitError(f"{name}={value} turns RDMA off, which global.training.rdma asks for", Exit.CONFIG)
    ports = {
        f"{state.parents[2].name}/{state.parent.name}": state.read_text().strip()
        for state in sorted((root / "sys/class/infiniband").glob("*/ports/*/state"))
    }
    if not ports:
        raise ExitError(
            "no RDMA device is in this pod, so training would fall back to TCP: check that the device plugin offers "
            "the resource of global.training.rdma.resource, or what global.training.rdma.by says, and that nodes have "
            "its driver",
            Exit.CONFIG,
        )
    active = [name for name, state in ports.items() if "ACTIVE" in state]
    if not active:
        shown = ", ".join(f"{name} {state}" for name, state in ports.items())
        raise ExitError(
            f"no port of the RDMA devices is active ({shown}), so training would fall back to TCP: check cables, "
            "switch and subnet manager",
            Exit.CONFIG,
        )
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if not may_lock(limit, (root / "proc/self/status").read_text()):
        raise ExitError(
            f"this user may lock {limit >> 10} KiB of memory, too little to register buffers for RDMA, so training "
            "would fall back to TCP: set LimitMEMLOCK=infinity for the nodes' container runtime",
            Exit.CONFIG,
        )
    print(f"preflight: RDMA: {', '.join(active)}", flush=True)


def may_lock(limit: int, status: str) -> bool:
    """Whether a limit in bytes, or the capability IPC_LOCK in /proc/self/status, lets a process register memory."""
    held = re.search(r"(?m)^CapEff:\s*([0-9a-f]+)", status)
    capable = held is not None and bool(int(held[1], 16) >> IPC_LOCK & 1)
    return limit == resource.RLIM_INFINITY or limit >= ENOUGH_LOCKED or capable


def fell_back(text: str) -> bool:
    """Whether NCCL's log says that it uses TCP."""
    return any("Socket" in (match[1], match[2]) for match in CHOSEN.finditer(text))


def watch(
    environ: MutableMapping[str, str] = os.environ, folder: Path = Path("/tmp"), every: float = 5.0
) -> threading.Thread | None:
    """Make NCCL log its choice, and warn if it is TCP although RDMA was asked for."""
    if environ.get("TRAINYARD_TRANSPORT") != "rdma" or "NCCL_DEBUG_FILE" in environ:
        return None
    environ["NCCL_DEBUG_FILE"] = str(folder / NCCL_LOG)
    if environ.get("NCCL_DEBUG", "").upper() not in ("INFO", "TRACE"):
        environ.update({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"})
    thread = threading.Thread(target=_watch, args=(folder, every), daemon=True, name="transport")
    thread.start()
    return thread


def _watch(folder: Path, every: float) -> None:
    while True:
        for path in folder.glob("nccl.*.log"):
            if fell_back(path.read_text(errors="replace")):
                print(
                    f"error: RDMA was asked for, and NCCL uses TCP (NET/Socket), so training is slow; {path} in this "
                    "pod tells why, and NCCL_NET in global.training.rdma.env (IB, or on EFA: AWS Libfabric) makes it "
                    "refuse instead",
                    file=sys.stderr,
                    flush=True,
                )
                return
        time.sleep(every)
