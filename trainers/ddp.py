"""Train with PyTorch's DistributedDataParallel, on one process or many.

    python -m trainers.launch --nproc-per-node 2 -m trainers.ddp --recipe demo --set run.dir=build/train

`torchrun` in the place of `python -m trainers.launch` works too; the launcher also passes exit codes on and gives
processes time to save when it is stopped.
"""

from trainers import entry
from trainers.exits import guarded

if __name__ == "__main__":
    guarded(lambda: entry.main("trainers.ddp", "ddp", __doc__.splitlines()[0]))
