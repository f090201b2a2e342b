"""Start one process per GPU on this node, and return the exit code that says why they ended (pod/launcher.py).

    trainyard launch --nproc-per-node 2 -m trainers.ddp --recipe demo --set run.dir=build/train

It takes torchrun's options and its PET_* variables.
"""

from trainyard.core.exits import guarded
from trainyard.pod import launcher, log

if __name__ == "__main__":
    guarded(lambda: log.kept(launcher.main))
