"""The loader by itself, with all cores: JPEGs of ImageNet's size to batches in memory, by policy of augmentation."""

import itertools
import os
import time

from benchmarks.gpu import pictures
from benchmarks.gpu.part import Part, main
from trainyard import config
from trainyard.data.sampler import Order
from trainyard.data.splits import open_splits

POLICIES = ("none", "trivial", "rand_increasing")


def work(part: Part) -> None:
    """Measure each policy."""
    shards = pictures.prepared(part.shared, 4096 if part.gpu else 48)
    cores = len(os.sched_getaffinity(0))
    for policy in POLICIES:
        with part.guarded(policy):
            rate, decoder = measure(part, str(shards), policy, cores)
            part.add(f"policy {policy}", "ok", f"{rate:,.0f} img/s, {cores} threads, {decoder}", rate=rate)


def measure(part: Part, shards: str, policy: str, cores: int) -> tuple[float, str]:
    """Images per second over some batches, after a few that are not counted; and what decodes."""
    batch, warm, count = (256, 4, 40) if part.gpu else (8, 1, 3)
    settings = config.build(
        {
            "epochs": 1, "batch": {"global": batch}, "model": {"channels_last": True}, "augment": {"policy": policy},
            "data": {"dir": shards, "workers": cores, "prefetch": 4, "image_size": 224 if part.gpu else 32},
        }
    )  # fmt: skip
    splits = open_splits(settings.data, settings.augment, settings.model, settings.seed, local_world=1, pin=part.gpu)
    order = Order(len(splits.train.labels), batch, 1)
    jobs = ((order.draws(step, 0, 1), order.slice(step, 0, 1)) for step in itertools.count())
    batches, samples = splits.train.batches(jobs), 0
    for _ in range(warm):
        next(batches)
    begin = time.perf_counter()
    for item in itertools.islice(batches, count):
        samples += len(item.ids)
    return samples / (time.perf_counter() - begin), splits.decoder


if __name__ == "__main__":
    main(work)
