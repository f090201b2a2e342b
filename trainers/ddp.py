"""Train with PyTorch's DistributedDataParallel or FSDP, on one process or many.

    python -m trainers.launch --nproc-per-node 2 -m trainers.ddp --recipe demo --set run.dir=build/train

`torchrun` works in place of `python -m trainers.launch`. Our launcher also returns the exit code of the process that
failed first, and gives processes time to save when it is stopped.
"""

from trainers.exits import guarded
from trainers.training import command

if __name__ == "__main__":
    guarded(lambda: command.main("trainers.ddp", "ddp", __doc__.splitlines()[0]))
