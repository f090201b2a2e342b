"""Train a plain function on all GPUs of one node: a process for each, with DDP.

    python examples/sdk/one_node.py -n training --runtime run --gpus 8
    python examples/sdk/one_node.py -n training --runtime run --gpus 0 --cpu 1100m      # two processes on processors

It replaces DataParallel, which drives all GPUs from one process, where only one thread runs at a time, and copies the
model to each GPU in every step.
"""

import jobs
from functions import train_ddp

if __name__ == "__main__":
    parser = jobs.options(__doc__, nodes=1, gpus=2)
    parser.add_argument("--global-batch", type=int, default=32, help="samples per step over all processes (default 32)")
    parser.add_argument("--epochs", type=int, default=2, help="(default 2)")
    given = parser.parse_args()
    results = f"/results/runs/{given.name}"
    raise SystemExit(jobs.send(given, train_ddp, global_batch=given.global_batch, epochs=given.epochs, results=results))
