"""The device of a process, its arithmetic and cores: the one place that sets torch's switches for arithmetic."""

import os
import sys
from collections.abc import Mapping, MutableMapping, Set
from pathlib import Path
from typing import Any

import torch

from trainyard.core.exits import UserError
from trainyard.parallel import cores
from trainyard.parallel.environment import Place

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
DEVICES, NODES = Path("/sys/bus/pci/devices"), Path("/sys/devices/system/node")


def prepare_device(
    wanted: str, precision: str, place: Place, *, deterministic: bool, bind_cores: bool = False
) -> torch.device:
    """Choose this process's device and set how it computes, before anything lies on it; raises UserError.

    `bind_cores`: bind the process to the cores beside its GPU.
    """
    if deterministic:
        be_deterministic(os.environ)
    device = choose_device(wanted, place)
    if device.type == "cuda":
        set_arithmetic(precision, deterministic=deterministic)
        if bind_cores:
            cores.remember()  # by which the loader's threads are counted
            bind_to_gpu_cores(device)  # before any thread is there: NCCL's, gloo's and the loader's get the same cores
    return device


def choose_device(wanted: str, place: Place) -> torch.device:
    """Return the device of this process: its own GPU, or the CPU; raises UserError where GPUs are too few."""
    if wanted == "cpu":
        return torch.device("cpu")
    if wanted == "auto" and not torch.cuda.is_available():
        if place.local_rank == 0 and (why := unused_gpus(os.environ)):
            print(f"warning: device = 'auto' trains on the CPU: {why}; set device to cuda or cpu", file=sys.stderr)
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count < place.local_world:
        raise UserError(
            f"device = {wanted!r}: {place.local_world} processes on this node but {count} usable GPUs; "
            "start as many processes per node as there are GPUs, or set device to cpu"
        )
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    return device


def unused_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> str:
    """Say why GPUs that are here cannot be used; empty where there are none, or none is wanted."""
    if environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
        return ""
    found = sorted(path.name for path in devices.glob("nvidia[0-9]*"))
    if not found:
        return ""
    built = torch.version.cuda
    why = f"torch {torch.__version__} is built for CPUs" if not built else f"torch, for CUDA {built}, cannot use them"
    return f"{', '.join(found)} are here, and {why}; `nvidia-smi` shows whether the driver works"


def set_arithmetic(precision: str, *, deterministic: bool) -> None:
    """How a GPU multiplies and convolves fp32 numbers: in TF32 where the precision allows it, else in full fp32.

    By itself torch convolves fp32 in TF32 and multiplies it in full. In bf16 and fp16 this concerns only what autocast
    leaves in fp32; TF32's 10 bits of mantissa are no fewer than theirs. These switches are in every torch since 1.12;
    `fp32_precision`, which came in 2.9, must not be set beside them.
    """
    allowed = precision in ("tf32", "bf16", "fp16")
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
    # Sizes stay the same, so trying convolution algorithms once pays; each start may choose another one, though
    torch.backends.cudnn.benchmark = not deterministic


def be_deterministic(environ: MutableMapping[str, str]) -> None:
    """Let operations give the same bits in every start, or raise where they can't.

    cuBLAS needs the variable before it is loaded (https://docs.pytorch.org/docs/stable/notes/randomness.html).
    """
    environ.setdefault(WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Memory that was never written is not read here; filling it would cost a pass over every batch
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False


def bind_to_gpu_cores(device: torch.device, devices: Path = DEVICES, nodes: Path = NODES) -> list[int]:
    """Bind this thread, and those that it starts, to the cores beside its GPU; returns them, none if unbound.

    Batches then do not cross the link between the CPUs: Linux places memory on the node whose core first writes to it,
    so the threads that prepare batches decide where these lie. They inherit the cores of the thread that starts them:
    the binding comes before the loader, and before the group of processes, whose threads move gradients.
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
        return parse_cpu_list((nodes / f"node{node}" / "cpulist").read_text()) if node >= 0 else set()
    except (OSError, ValueError):
        return set()


def parse_cpu_list(text: str) -> set[int]:
    """Return the numbers of a list such as `0-3,8`; raises ValueError."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found |= set(range(int(first), int(last or first) + 1))
    return found
