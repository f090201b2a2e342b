"""What the parts of `make gpu` share: their options, and their results, which are on disk as soon as they are known."""

import argparse
import contextlib
import json
import math
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]  # name, state (ok, failed, "needs a GPU"), text, figures, and `bounds` of some figures
Bounds = Mapping[str, tuple[float | None, float | None]]  # a figure's least and most; a dot leads into a figure's parts


@dataclass
class Part:
    """A part while it runs."""

    out: Path
    device: str  # cuda or cpu; on a CPU sizes are tiny and figures mean nothing
    folder: Path  # for what it writes; removed at the end
    shared: Path  # for what several parts use, such as pictures; kept
    rows: list[Row] = field(default_factory=list)
    _adding: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def gpu(self) -> bool:
        """Whether there is a GPU to run on."""
        return self.device == "cuda"

    @property
    def bf16(self) -> bool:
        """Whether the device computes in bf16: GPUs before A100 only emulate it, far slower than fp32."""
        import torch

        return not self.gpu or torch.cuda.is_bf16_supported(including_emulation=False)

    def lacks_bf16(self, name: str, precision: str) -> bool:
        """Record that something is left out since the device does not compute in bf16; whether that is so."""
        lacks = precision == "bf16" and not self.bf16
        if lacks:
            self.add(name, "not here", "this GPU has no bf16")
        return lacks

    def add(self, name: str, state: str, text: str, **figures: Any) -> None:
        """Record a row, and write all so far; a part may do so from several threads."""
        with self._adding:
            self.rows.append({"name": name, "state": state, "text": text, **figures})
            write(self.out, {"rows": self.rows})
        print(f"{state:12} {name}: {text}", flush=True)

    def check(self, name: str, right: bool, text: str, *, bounds: Bounds | None = None, **figures: Any) -> None:
        """Record whether something is as it must be: it is right, and figures are within their bounds."""
        if bounds:
            figures |= {"bounds": {key: list(bound) for key, bound in bounds.items()}}
        self.add(name, "ok" if right and not beyond(figures) else "failed", text, **figures)

    def needs_gpu(self, name: str) -> bool:
        """Record that something is not run without a GPU; whether that is so."""
        if not self.gpu:
            self.add(name, "needs a GPU", "")
        return not self.gpu

    @contextlib.contextmanager
    def guarded(self, name: str) -> Iterator[None]:
        """Record an error in the block as a failure of `name`; the part continues."""
        begin = time.monotonic()
        try:
            yield
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            lines = str(error).splitlines() or [""]
            self.add(name, "failed", f"{type(error).__name__}: {lines[0][:300]}")
        print(f"             {time.monotonic() - begin:.1f} s", flush=True)


def beyond(row: Row) -> list[str]:
    """Return the figures of a row that are not within its bounds, or are no numbers."""
    found = []
    for key, (least, most) in row.get("bounds", {}).items():
        value: Any = row
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        number = isinstance(value, int | float) and not math.isnan(value)
        if not number or (least is not None and value < least) or (most is not None and value > most):
            found.append(key)
    return found


def write(path: Path, value: Any) -> None:
    """Replace a file of JSON at once: whenever this process ends, the file is whole."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(finite(value), indent=1, allow_nan=False) + "\n")
    new.replace(path)


def finite(value: Any) -> Any:
    """Return the same with null for numbers that JSON does not have: NaN and the infinite."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main(work: Callable[[Part], None]) -> None:
    """Run a part as a program: `python -m benchmarks.gpu.parts.NAME OUT.json --device cuda`; 1 if a row failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix=f"{options.out.stem}-", dir=options.out.parent))
    shared = Path(os.environ.get("TRAINYARD_GPU_SHARED") or folder)
    part = Part(options.out, options.device, folder, shared)
    write(options.out, {"rows": []})
    try:
        work(part)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.flush()
    os._exit(int(any(row["state"] == "failed" for row in part.rows)))  # not through libraries' destructors
