"""Measure a trained model on any pictures whose classes are known (inference/evaluate.py).

trainyard evaluate --model runs/mine --data pictures/
trainyard launch --nproc-per-node 2 -m trainyard evaluate --model runs/mine --data pictures/
"""

from trainyard.core import garbage
from trainyard.core.exits import guarded

with garbage.paused():
    from trainyard.inference import evaluate

if __name__ == "__main__":
    guarded(evaluate.main)
