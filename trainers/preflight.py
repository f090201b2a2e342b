"""Check this pod before training; runs as an init container (pod/preflight.py).

trainyard preflight --data /data/imagenet --results /results/runs/resnet50 --shm 8589934592 --timeout 3600
"""

from trainyard.core.exits import guarded
from trainyard.pod import preflight

if __name__ == "__main__":
    guarded(preflight.main)
