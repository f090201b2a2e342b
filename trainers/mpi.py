"""What the pods of an MPIJob run: workers that serve ssh, and the launcher that starts the ranks (pod/mpi.py).

trainyard mpi worker
trainyard mpi launch --np 4 [--run-dir RUN] -- python -m trainers.hvd --config FILE
"""

from trainyard.core.exits import guarded
from trainyard.pod import mpi

if __name__ == "__main__":
    guarded(mpi.main)
