"""Say what a trained model sees on any pictures (inference/predict.py).

trainyard predict --model runs/mine --data pictures/
trainyard launch --nproc-per-node 2 -m trainyard predict --model runs/mine --data pictures/
"""

from trainyard.core import garbage
from trainyard.core.exits import guarded

with garbage.paused():
    from trainyard.inference import predict

if __name__ == "__main__":
    guarded(predict.main)
