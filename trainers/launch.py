"""Start one process per GPU on this node, and return the exit code that says why they ended (pod/launcher.py).

    python -m trainers.launch --nproc-per-node 2 -m trainers.ddp --recipe demo --set run.dir=build/train

It takes torchrun's options and its PET_* variables.
"""

from trainers.exits import guarded
from trainers.pod import launcher, log

if __name__ == "__main__":
    guarded(lambda: log.kept(launcher.main))
