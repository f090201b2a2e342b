"""A model whose process dies by SIGKILL at a planned place: in the middle of a step, a validation, or a write.

KILLS holds the plan as JSON: for each start of the processes [rank, place, step, part]. The process of that rank is
killed at the first such place once the run has done `step` steps; `part`, from 0 to 1, says how far into the place.
"""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
from little_models import Net
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

PLACES = ("forward", "backward", "optimizer", "validation", "writing")


class Killed(nn.Module):
    """Dropout and a wide layer, so that writing takes a moment."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(Net(32), nn.Dropout(0.5))
        self.wide = nn.Linear(32, 16_384, bias=False)
        self.fc = nn.Linear(16_384, num_classes)
        start = int(os.environ.get("KILLS_DONE", "0")) + int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        plan: list[Any] = json.loads(os.environ.get("KILLS", "[]"))
        rank, self.place, self.step, self.part = plan[start] if start < len(plan) else (-1, "", 0, 0.0)
        self.chosen = rank == int(os.environ.get("RANK", "0"))
        self.folder = Path(os.environ.get("KILLS_RUN", ".")) / "checkpoints"
        self.done, self.validated = -1, 0
        if self.chosen:
            register_optimizer_step_post_hook(lambda *_: self.stepped())

    def forward(self, x: Tensor) -> Tensor:
        if self.done < 0:
            self.done = self.newest()
            if self.chosen and self.place == "writing":
                threading.Thread(target=self.watch, daemon=True).start()
        if self.training:
            self.meet("forward")
        elif self.done >= self.step:
            self.validated += 1
            self.meet("validation", self.validated > 3 * self.part)
        hidden = self.wide(self.body(x)).relu()
        if self.training and self.chosen and torch.is_grad_enabled():
            hidden.register_hook(lambda _: self.meet("backward"))
        out: Tensor = self.fc(hidden)
        return out

    def stepped(self) -> None:
        self.meet("optimizer")
        self.done += 1

    def meet(self, place: str, here: bool = True) -> None:
        if self.chosen and place == self.place and self.done >= self.step and here:
            os.kill(os.getpid(), signal.SIGKILL)

    def newest(self) -> int:
        return max((int(path.name[5:]) for path in self.folder.glob("step-*")), default=0)

    def watch(self) -> None:
        """Die while a checkpoint is being written, or has just been."""
        while not any(self.folder.glob(".step-*.tmp")) or self.done < self.step:
            if self.newest() > max(self.step, 1) + 4:
                break
            time.sleep(0.0002)
        time.sleep(0.01 * self.part)
        os.kill(os.getpid(), signal.SIGKILL)


def net(num_classes: int) -> nn.Module:
    return Killed(num_classes)
