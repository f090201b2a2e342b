"""Check this pod before training; runs as an init container (pod/preflight.py).

python -m trainers.preflight --data /data/imagenet --results /results/runs/resnet50 --shm 8589934592 --timeout 3600
"""

from trainers.exits import guarded
from trainers.pod import preflight

if __name__ == "__main__":
    guarded(preflight.main)
