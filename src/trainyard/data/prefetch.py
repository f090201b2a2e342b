"""Copies batches to the device, so that the copy overlaps with the steps that the device still does."""

from collections.abc import Iterator

import torch

from trainyard.data.loader import Batch


def prefetch(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield the same batches with images and labels on the device.

    A batch is copied when it is asked for, on a stream beside the one that trains. The host asks while the device still
    does the steps before (training/pace.py), so it need not be asked for earlier; and none waits for the one after it.
    """
    if device.type != "cuda":
        yield from batches
        return
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    for batch in batches:
        with torch.cuda.stream(stream):
            images, labels = (part.to(device, non_blocking=True) for part in (batch.images, batch.labels))
            copied = stream.record_event()
        yield _ready(Batch(batch.ids, images, labels), copied)


def _ready(batch: Batch, copied: torch.cuda.Event) -> Batch:
    """Make the main stream wait for a batch's copy, and keep its memory until the main stream is done with it."""
    current = torch.cuda.current_stream()
    current.wait_event(copied)
    batch.images.record_stream(current)
    batch.labels.record_stream(current)
    return batch
