"""A model whose process dies by SIGKILL at a random place: in the middle of a step, a validation, or a write.

KILLS starts of the processes end that way, KILLS_DONE of them already have; KILLS_SEED decides which rank is killed,
where and how far on from the newest checkpoint of KILLS_RUN, the run directory.
"""

import os
import random
import signal
import threading
import time
from pathlib import Path

import torch
from little_models import Net
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

PLACES = ("forward", "backward", "optimizer", "validation", "writing")
STEPS, AHEAD = 24, 6  # of the run; a kill comes so many steps after the checkpoint at most


class Killed(nn.Module):
    """Dropout and a wide layer, so that writing takes a moment."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(Net(32), nn.Dropout(0.5))
        self.wide = nn.Linear(32, 16_384, bias=False)
        self.fc = nn.Linear(16_384, num_classes)
        self.folder = Path(os.environ.get("KILLS_RUN", ".")) / "checkpoints"
        self.done, self.validated = self.newest(), 0
        self.place = self.choose(self.done)

    def choose(self, saved: int) -> str:
        """Draw rank, place and step of this start; the place if it is this process's, else nothing."""
        start = int(os.environ.get("KILLS_DONE", "0")) + int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        if start >= int(os.environ.get("KILLS", "0")):
            return ""
        draw = random.Random(f"{os.environ['KILLS_SEED']}:{start}")
        place = draw.choice(PLACES) if saved < STEPS else "validation"
        chosen = 0 if place == "writing" else draw.randrange(2)
        self.step = min(saved + draw.randrange(AHEAD), STEPS - 1)
        self.part = draw.random()
        if chosen != int(os.environ.get("RANK", "0")):
            return ""
        print(f"KILL {start}: rank {chosen} in {place} after step {self.step} ({self.part:.3f})", flush=True)
        if place == "optimizer":
            register_optimizer_step_post_hook(lambda *_: self.meet("optimizer"))
        if place == "writing":
            threading.Thread(target=self.watch, args=(saved,), daemon=True).start()
        return place

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.meet("forward")
        else:
            self.validated += 1
            self.meet("validation", bool(self.place) and self.validated > 3 * self.part)
        hidden = self.wide(self.body(x)).relu()
        if self.training and torch.is_grad_enabled():
            hidden.register_hook(lambda _: self.meet("backward"))
            self.done += 1
        out: Tensor = self.fc(hidden)
        return out

    def meet(self, place: str, here: bool = True) -> None:
        if place == self.place and here and (place == "validation" or self.done >= self.step):
            os.kill(os.getpid(), signal.SIGKILL)

    def newest(self) -> int:
        return max((int(path.name[5:]) for path in self.folder.glob("step-*")), default=0)

    def watch(self, saved: int) -> None:
        """Die while the next checkpoint is being written, or has just been."""
        while not list(self.folder.parent.glob("leases/*/.step-*.tmp")) and self.newest() == saved:
            time.sleep(0.0002)
        time.sleep(0.01 * self.part)
        os.kill(os.getpid(), signal.SIGKILL)


def net(num_classes: int) -> nn.Module:
    return Killed(num_classes)
