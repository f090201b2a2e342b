"""What both entry points do: read the settings, then train."""

import argparse
import warnings

from trainers import config
from trainers.exits import end_on_failed_preflight


def main(module: str, launcher: str, description: str) -> int:
    """Train as the command line says, under one of the two launchers (`ddp`: torchrun, `horovod`: mpirun)."""
    end_on_failed_preflight()
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    config.add_options(parser)
    settings = config.load(parser.parse_args())
    # Imported late: a mistake in the settings is reported in a tenth of a second, before torch is loaded.
    from trainers.training import loop

    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    return loop.run(settings, launcher)
