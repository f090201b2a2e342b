"""What the SDK's page "Distributed Training" does about the batch, for comparison: https://kf-sdk.readthedocs.io.

It scales the batch with the workers (32 times their number) and gives that to the loader of every process, so that the
global batch grows with the square of the processes.
"""


def samples_in_a_step(results: str) -> None:
    """Write how many samples this process sees in one step."""
    import os
    import pathlib

    import torch
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    data = TensorDataset(torch.zeros(2048, 1))
    sampler = DistributedSampler(data, world_size, rank)
    (batch,) = next(iter(DataLoader(data, batch_size=32 * world_size, sampler=sampler)))
    pathlib.Path(results, f"page-{rank}").write_text(str(len(batch)))
