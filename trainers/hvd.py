"""Train with Horovod, under mpirun or horovodrun.

mpirun -np 2 python -m trainers.hvd --recipe demo --set run.dir=build/train-hvd
horovodrun -np 2 python -m trainers.hvd --recipe demo --set run.dir=build/train-hvd
"""

from trainyard.core.exits import guarded
from trainyard.training import command

if __name__ == "__main__":
    guarded(lambda: command.main("python -m trainers.hvd", "horovod", __doc__.splitlines()[0]))
