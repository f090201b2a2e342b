"""Say what a trained model sees on any pictures (inference/predict.py).

python -m trainers.predict --model runs/mine --data pictures/
python -m trainers.launch --nproc-per-node 2 -m trainers.predict --model runs/mine --data pictures/
"""

from trainers import garbage
from trainers.exits import guarded

with garbage.paused():
    from trainers.inference import predict

if __name__ == "__main__":
    guarded(predict.main)
