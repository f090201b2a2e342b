"""What the pods of an MPIJob run: workers that serve ssh, and the launcher that starts the ranks (pod/mpi.py).

python -m trainers.mpi worker
python -m trainers.mpi launch --np 4 [--run-dir RUN] -- python -m trainers.hvd --config FILE
"""

from trainers.exits import guarded
from trainers.pod import mpi

if __name__ == "__main__":
    guarded(mpi.main)
