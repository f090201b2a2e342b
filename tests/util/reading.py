"""Operations that make the host wait for a device: they are refused, on a processor too."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::unique")


class NoReads(TorchDispatchMode):
    """Refuses operations that a device would be waited for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        masks = any(
            part is not None and part.dtype == torch.bool for part in (args[1] if name == "aten::index" else ())
        )
        if name.startswith(READS) or masks:
            raise AssertionError(f"waits for the device: {name}")
        return func(*args, **(kwargs or {}))
