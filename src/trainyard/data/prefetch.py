"""Copies batches to the device one step ahead, so that the copy overlaps with the step before."""

from collections.abc import Iterator

import torch

from trainyard.data.loader import Batch


def prefetch(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield the same batches with pictures and labels on the device; the next one is copied while one is used."""
    if device.type != "cuda":
        yield from batches
        return
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    ahead: tuple[Batch, torch.cuda.Event] | None = None
    for batch in batches:
        with torch.cuda.stream(stream):
            pictures, labels = (part.to(device, non_blocking=True) for part in (batch.pictures, batch.labels))
            copied = stream.record_event()
        if ahead is not None:
            yield _ready(*ahead)
        ahead = Batch(batch.ids, pictures, labels), copied
    if ahead is not None:
        yield _ready(*ahead)


def _ready(batch: Batch, copied: torch.cuda.Event) -> Batch:
    """Make the main stream wait for a batch's copy, and keep its memory until the main stream is done with it."""
    current = torch.cuda.current_stream()
    current.wait_event(copied)
    batch.pictures.record_stream(current)
    batch.labels.record_stream(current)
    return batch
