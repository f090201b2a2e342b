"""The trainer on a machine whose processors count energy as the folder $POWERCAP does."""

import os
from pathlib import Path

from trainers.exits import guarded
from trainers.telemetry import energy
from trainers.training import command

if __name__ == "__main__":
    energy.POWERCAP = Path(os.environ["POWERCAP"])
    guarded(lambda: command.main("trainers.ddp", "ddp", "the trainer, metered"))
