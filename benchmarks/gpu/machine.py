"""What the machine of `make gpu` has, and what is added: Python, packages, the decoder, the GPU.

    python -m benchmarks.gpu.machine OUT.json      versions and GPU; its own process, since a broken driver may hang

Nothing of the trainers is imported before `prepared` has made an environment in which they can be.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("src/trainyard", "benchmarks/gpu")  # folders of what is run, whose Python files are hashed
PACKAGES = ("torch", "torchvision", "timm", "pydantic", "numpy", "nvidia-dali-cuda130", "triton")


class MissingError(Exception):
    """Something that the trainers need is neither installed nor carried."""


def prepared(carried: Path, cache: Path) -> tuple[dict[str, str], str]:
    """Return the environment of the parts, and a line on what was added to this Python; raises MissingError."""
    added = [folder for folder in sorted(carried.glob("*")) if folder.name != "native" and lacks(folder)]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("TRAINYARD_", "PET_", "WANDB"))}
    paths = [str(ROOT / "src"), str(ROOT), *map(str, added), *filter(None, [env.get("PYTHONPATH")])]
    (cache / "native").mkdir(parents=True, exist_ok=True)
    for file in carried.glob("native/*.so"):
        shutil.copy(file, cache / "native")
    env |= {"PYTHONPATH": os.pathsep.join(paths), "TRAINYARD_CACHE": str(cache), "PYTHONUNBUFFERED": "1"}
    env["TRAINYARD_GPU_SHARED"] = str(cache)
    env.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "inductor"))  # parts share what they compile
    names = ", ".join(folder.name for folder in added) or "nothing"
    found = {entry.name for folder in added for entry in folder.iterdir()}
    missing = [name for name in ("torch", "torchvision") if version(name) is None]
    missing += [name for name in ("pydantic", "yaml", "rich", "safetensors", "prometheus_client", "requests")
                if name not in found and not importable(name)]  # fmt: skip
    if missing:
        raise MissingError(
            f"{', '.join(missing)} missing for {sys.executable}: run `make gpu-wheels` on a machine with a network and "
            f"bring {carried} along; torch and torchvision must be here already"
        )
    if any(entry.name.endswith(".so") and f"cpython-{sys.version_info[0]}{sys.version_info[1]}" not in entry.name
           for folder in added for entry in folder.rglob("*.cpython-*.so")):  # fmt: skip
        raise MissingError(f"the wheels in {carried} are for another Python than {platform.python_version()}")
    return env, f"carried: {names}"


def lacks(folder: Path) -> bool:
    """Whether the package that a folder carries is not installed here, or is older."""
    info = next(folder.glob("*.dist-info"), None)
    if info is None:
        return False
    name, _, carried = info.name.removesuffix(".dist-info").partition("-")
    here = version(name)
    return here is None or numbers(here) < numbers(carried)


def version(name: str) -> str | None:
    """Return the installed version of a package, if it is there."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def numbers(text: str) -> list[int]:
    """Return the numbers at the begin of a version, to compare."""
    return [int(part) for part in re.findall(r"\d+", re.split(r"[+a-z]", text)[0])]


def importable(name: str) -> bool:
    """Whether a module is there."""
    return importlib.util.find_spec(name) is not None


def facts() -> dict[str, Any]:
    """Versions, processor, and the GPU if torch can use one."""
    import torch

    from trainyard import native

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES if version(name)},
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpu": "",
        "decoder": "native" if decoder(native) else "torchvision",
    }
    if torch.cuda.is_available():
        facts = torch.cuda.get_device_properties(0)
        free, total = torch.cuda.mem_get_info(0)
        torch.ones(8, device="cuda").sum().item()
        found |= {
            "gpu": facts.name, "gpu_memory_gib": round(facts.total_memory / 2**30, 1), "cuda": torch.version.cuda,
            "capability": f"{facts.major}.{facts.minor}", "gpus": torch.cuda.device_count(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())), "cudnn": torch.backends.cudnn.version(),
            "memory_used_by_others_gib": round((total - free) / 2**30, 2),
            "allocator": os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
            "driver": driver(),
        }  # fmt: skip
    return found


def driver() -> str:
    """Return the version of NVIDIA's kernel module; empty where the kernel does not say it."""
    try:
        found = re.search(r"(\d+\.\d+(\.\d+)?)", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return ""
    return found[1] if found else ""


def source(root: Path) -> dict[str, str]:
    """Return what is run: the commit where git knows it, and a hash of all programs here, whatever git knows."""
    paths = [path for folder in PROGRAMS for path in root.glob(f"{folder}/**/*.py")]
    asked = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--match="]
    try:
        commit = subprocess.run(asked, text=True, capture_output=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = ""
    return {"commit": commit, "sha256": hash_of({str(path.relative_to(root)): path.read_bytes() for path in paths})}


def hash_of(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of programs, by name and content."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0".encode() + files[name])
    return digest.hexdigest()


def decoder(native: Any) -> bool:
    """Whether the decoder in C is here: carried, or compiled now if there is a compiler."""
    from trainyard.native.compile import compile_library

    if native.library_path() is None and (why := compile_library(native.cached_path())):
        print(f"the JPEG decoder was not built, so torchvision decodes: {why}", flush=True)
    return native.library() is not None


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(facts(), indent=1) + "\n")
