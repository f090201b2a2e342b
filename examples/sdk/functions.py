"""What the scripts of this folder run on every process: plain functions, which the SDK sends as text.

    torchrun --standalone --nproc-per-node 2 examples/sdk/functions.py     # train_ddp without SDK and cluster

Each is self-contained (imports inside), and contains nothing that a shell would change: the SDK passes the text
through one. Each process uses its own GPU if there is one (over nccl), else the CPU (over gloo).
"""


def train_ddp(global_batch=32, epochs: int = 2, lr: float = 0.1, results: str = "/results/runs/sdk") -> None:  # noqa: PLR0915
    """Train a small classifier with DDP: global_batch samples a step, however many processes there are."""
    if isinstance(global_batch, dict):  # the SDK's local backend passes one dict, a cluster keyword arguments
        train_ddp(**global_batch)
        return

    import json
    import os
    import sys
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if global_batch % world:
        raise SystemExit(f"global_batch = {global_batch}: not a multiple of the {world} processes; change one of them")

    # Ten classes of points, the same on all processes: put your own data here
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(2048, 16, generator=generator)
    data = TensorDataset(points, (points @ torch.randn(16, 10, generator=generator)).argmax(1))
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=global_batch // world, sampler=sampler, pin_memory=cuda)

    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
    model = nn.parallel.DistributedDataParallel(net, device_ids=[device] if cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    samples, losses = 0.0, []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # without it every epoch has the same order
        sums = torch.zeros(3, dtype=torch.float64, device=device)  # samples, those classified rightly, losses
        for batch in loader:
            x, y = (tensor.to(device, non_blocking=True) for tensor in batch)
            output = model(x)
            loss = nn.functional.cross_entropy(output, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right = (output.detach().argmax(1) == y).sum()
            sums += torch.stack([torch.full_like(right, len(y)), right, loss.detach() * len(y)])
        dist.all_reduce(sums)  # each process has seen only its part
        samples += sums[0].item()
        losses.append((sums[2] / sums[0]).item())
        if rank == 0:
            print(f"epoch {epoch + 1} of {epochs}: loss {losses[-1]:.4f}, top-1 {100 * sums[1] / sums[0]:.2f} %")

    if rank == 0:  # one writer; the rename below publishes only whole files
        folder = Path(results)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(net.state_dict(), folder / "model.pth.part")
        (folder / "model.pth.part").replace(folder / "model.pth")
        seen = samples / (epochs * len(loader))
        summary = {"processes": world, "samples_per_step": seen, "losses": losses}
        (folder / "summary.json").write_text(json.dumps(summary))
        print(f"{world} processes on {device.type}, {seen:g} samples a step over all of them; weights in {folder}")
    dist.destroy_process_group()
    if not cuda:  # gloo's threads may abort a Python that shuts down; our own trainers leave so, too
        sys.stdout.flush()
        os._exit(0)


def train_fsdp(  # noqa: PLR0915
    global_batch: int = 32, steps: int = 40, lr: float = 3e-4, width: int = 128, results: str = "/results/runs/sdk"
) -> None:
    """Train a sharded model with FSDP2: each process keeps only its part of weights and optimizer."""
    import json
    import os
    import sys
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if global_batch % world:
        raise SystemExit(f"global_batch = {global_batch}: not a multiple of the {world} processes; change one of them")
    mesh = init_device_mesh(device.type, (world,))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.inner(x)

    # Each block is sharded as soon as it is created: at most one block is whole in memory, here and in training
    torch.manual_seed(1)
    blocks = [fully_shard(Block().to(device), mesh=mesh) for _ in range(8)]
    model = fully_shard(nn.Sequential(nn.Linear(16, width), *blocks, nn.Linear(width, 10)).to(device), mesh=mesh)
    whole = sum(parameter.numel() for parameter in model.parameters())
    own = sum(parameter.to_local().numel() for parameter in model.parameters())

    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(1)
    truth = torch.randn(16, 10, generator=generator)
    losses = []
    for _ in range(steps):  # every process draws the global batch and takes its part: put your own data here
        points = torch.randn(global_batch, 16, generator=generator)
        labels = (points @ truth).argmax(1)
        x, y = (tensor.chunk(world)[rank].to(device) for tensor in (points, labels))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(float(total) / world)

    # Whole tensors under the model's own names, on the first process alone: any program loads them
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        folder = Path(results)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(weights, folder / "model.pth.part")
        (folder / "model.pth.part").replace(folder / "model.pth")
        summary = {"processes": world, "parameters": whole, "on_each": own, "losses": losses}
        (folder / "summary.json").write_text(json.dumps(summary))
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {steps} steps of {global_batch} samples")
        print(
            f"{world} processes on {device.type}: this one keeps {own:,} of {whole:,} parameters; weights in {folder}"
        )
    dist.destroy_process_group()
    if not cuda:  # gloo's threads may abort a Python that shuts down; our own trainers leave so, too
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    train_ddp(results="build/sdk")
