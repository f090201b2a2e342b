"""Train with PyTorch's DistributedDataParallel or FSDP, on one process or many.

    trainyard launch --nproc-per-node 2 -m trainers.ddp --recipe demo --set run.dir=build/train

`torchrun` works in place of `trainyard launch`. Our launcher also returns the exit code of the process that
failed first, and gives processes time to save when it is stopped.
"""

from trainyard.core.exits import guarded


def main() -> int:
    """Train."""
    from trainyard.training import command  # imported late: a package with another project's files is refused before

    return command.main("python -m trainers.ddp", "ddp", __doc__.splitlines()[0])


if __name__ == "__main__":
    guarded(main)
