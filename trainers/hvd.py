"""Train with Horovod, under mpirun or horovodrun.

mpirun -np 2 python -m trainers.hvd --recipe demo --set run.dir=build/train-hvd
horovodrun -np 2 python -m trainers.hvd --recipe demo --set run.dir=build/train-hvd
"""

from trainyard.core.exits import guarded


def main() -> int:
    """Train."""
    from trainyard.training import command  # imported late: a package with another project's files is refused before

    return command.main("python -m trainers.hvd", "horovod", __doc__.splitlines()[0])


if __name__ == "__main__":
    guarded(main)
