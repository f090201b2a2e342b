"""Train with Horovod, under mpirun or horovodrun.

mpirun -np 2 python -m trainers.hvd --recipe demo --set run.dir=build/train-hvd
horovodrun -np 2 python -m trainers.hvd --recipe demo --set run.dir=build/train-hvd
"""

from trainers import entry
from trainers.exits import guarded

if __name__ == "__main__":
    guarded(lambda: entry.main("trainers.hvd", "horovod", __doc__.splitlines()[0]))
