"""Train with PyTorch's DistributedDataParallel, on one process or many.

    python -m trainers.launch --nproc-per-node 2 -m trainers.ddp --recipe demo --set run.dir=build/train

`torchrun` in the place of `python -m trainers.launch` works too; the launcher also passes exit codes on and gives
processes time to save when it is stopped.
"""

import argparse
import warnings

from trainers import config
from trainers.exits import end_on_failed_preflight, guarded


def main() -> int:
    """Read the settings and train."""
    end_on_failed_preflight()
    parser = argparse.ArgumentParser(prog="python -m trainers.ddp", description=__doc__.split("\n")[0])
    config.add_options(parser)
    settings = config.load(parser.parse_args())
    # Imported late: a mistake in the settings is told in a tenth of a second, before torch is loaded.
    from trainers import engine

    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    return engine.run(settings, "ddp")


if __name__ == "__main__":
    guarded(main)
