"""Train with Horovod, under mpirun or horovodrun.

mpirun -np 2 python -m trainers.hvd --recipe demo --set run.dir=build/train-hvd
horovodrun -np 2 python -m trainers.hvd --recipe demo --set run.dir=build/train-hvd
"""

import argparse
import warnings

from trainers import config
from trainers.exits import end_on_failed_preflight, guarded


def main() -> int:
    """Read the settings and train."""
    end_on_failed_preflight()
    parser = argparse.ArgumentParser(prog="python -m trainers.hvd", description=__doc__.split("\n")[0])
    config.add_options(parser)
    settings = config.load(parser.parse_args())
    # Imported late: a mistake in the settings is told in a tenth of a second, before torch is loaded.
    from trainers import engine

    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    return engine.run(settings, "horovod")


if __name__ == "__main__":
    guarded(main)
