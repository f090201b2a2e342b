"""The trainer, which counts: `python -m counted`, started as `-m trainers.ddp` is.

COUNTED names a folder; each rank writes RANK.json there: the programs that torch.compile made, how often its caches had
one, and the steps (of all those done when it happened) of Python's full garbage collections while it trained. COMPILER
names another backend for torch.compile, such as aot_eager, which makes the same programs and generates no code for
them.
"""

import functools
import gc
import json
import os
from pathlib import Path
from typing import Any

import torch

from trainyard.core.exits import guarded
from trainyard.training import command, loop


def main() -> int:
    if name := os.environ.get("COMPILER"):
        torch.compile = functools.partial(torch.compile, backend=name)  # type: ignore[assignment]
    steps, collected = [0], []
    train, train_step = loop.train, loop.train_step

    def seen(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"] == 2 and steps[0]:
            collected.append(steps[0])

    def counted(t: Any) -> None:
        gc.callbacks.append(seen)
        train(t)
        gc.callbacks.remove(seen)

    def stepped(t: Any, batch: Any) -> Any:
        result = train_step(t, batch)
        steps[0] += 1
        return result

    loop.train, loop.train_step = counted, stepped
    code = command.main("trainers.ddp", "ddp", "the trainer, which counts")
    from torch._dynamo.utils import counters

    kept = [key for part in counters.values() for key in part.elements() if key.endswith(("cache_hit", "cache_miss"))]
    fixed = torch.are_deterministic_algorithms_enabled()
    found = {
        "deterministic": fixed,
        "programs": counters["stats"].get("unique_graphs", 0),
        "kept": {end: sum(key.endswith(f"cache_{end}") for key in kept) for end in ("hit", "miss")},
        "collected": collected,
        "enabled": gc.isenabled(),
    }
    Path(os.environ["COUNTED"], f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))
    return code


if __name__ == "__main__":
    guarded(main)
