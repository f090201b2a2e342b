"""The trainer on a machine whose processors count energy as the folder $POWERCAP does, and more at each look."""

import os
import sys
from pathlib import Path

from trainyard.core.exits import guarded
from trainyard.telemetry import energy
from trainyard.training import command

JOULES = 5


def advance(event: str, args: tuple[object, ...]) -> None:
    """Let a counter grow before it is read, so that it has, however soon after the last time that is."""
    if event == "open" and args[1] == "r" and Path(str(args[0])).name == "energy_uj":
        counter = os.open(str(args[0]), os.O_RDWR)  # which raises the event again, without a mode
        joules = int(os.read(counter, 64)) + JOULES * 1_000_000
        os.pwrite(counter, f"{joules}\n".encode(), 0)
        os.close(counter)


if __name__ == "__main__":
    energy.POWERCAP = Path(os.environ["POWERCAP"])
    sys.addaudithook(advance)
    guarded(lambda: command.main("trainers.ddp", "ddp", "the trainer, metered"))
