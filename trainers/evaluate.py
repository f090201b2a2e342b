"""Measure a trained model on any pictures whose classes are known (inference/evaluate.py).

python -m trainers.evaluate --model runs/mine --data pictures/
python -m trainers.launch --nproc-per-node 2 -m trainers.evaluate --model runs/mine --data pictures/
"""

from trainers import garbage
from trainers.exits import guarded

with garbage.paused():
    from trainers.inference import evaluate

if __name__ == "__main__":
    guarded(evaluate.main)
