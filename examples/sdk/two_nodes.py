"""Train a plain function on several nodes with DDP, through a runtime that the chart installed.

    python examples/sdk/two_nodes.py -n training --runtime run --nodes 2 --gpus 8
    python examples/sdk/two_nodes.py -n training --runtime run --gpus 0 --cpu 200m      # on processors

The global batch is what you ask for, on any number of nodes and GPUs. Weights and summary.json go to the results claim.
"""

import jobs
from functions import train_ddp

if __name__ == "__main__":
    parser = jobs.options(__doc__, nodes=2, gpus=1)
    parser.add_argument("--global-batch", type=int, default=32, help="samples per step over all processes (default 32)")
    parser.add_argument("--epochs", type=int, default=2, help="(default 2)")
    given = parser.parse_args()
    results = f"/results/runs/{given.name}"
    raise SystemExit(jobs.send(given, train_ddp, global_batch=given.global_batch, epochs=given.epochs, results=results))
