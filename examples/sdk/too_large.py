"""Train a model that does not fit one GPU: FSDP2 keeps a part of weights, gradients and optimizer on each.

    python examples/sdk/too_large.py -n training --runtime run --nodes 2 --gpus 8 --width 8192
    python examples/sdk/too_large.py -n training --runtime run --gpus 0 --cpu 200m      # small, on processors

The model is eight blocks of 8 x width x width parameters. For a classifier of torchvision, timm or your own, with
checkpoints that resume on any number of GPUs, `our_trainers.py --set strategy=fsdp` does the same.
"""

import jobs
from functions import train_fsdp

if __name__ == "__main__":
    parser = jobs.options(__doc__, nodes=2, gpus=1)
    parser.add_argument("--global-batch", type=int, default=32, help="samples per step over all processes (default 32)")
    parser.add_argument("--steps", type=int, default=40, help="(default 40)")
    parser.add_argument("--width", type=int, default=128, help="of a block's input and output (default 128)")
    given = parser.parse_args()
    sizes = {"global_batch": given.global_batch, "steps": given.steps, "width": given.width}
    raise SystemExit(jobs.send(given, train_fsdp, **sizes, results=f"/results/runs/{given.name}"))
