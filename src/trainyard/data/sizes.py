"""The size of training images: a function of the epoch alone, so every process and every start has the same sizes.

Small images first, larger ones later cost less time than large ones throughout, for about the same accuracy (Composer's
ProgressiveResizing, ffcv's ImageNet configurations).
"""

from trainyard.config.sections.data import DataSettings

PRECISION = 9  # decimal places of an epoch: 0.07 * 100 is epoch 7


def size_of(data: DataSettings, epoch: int, epochs: int) -> int:
    """Return height and width of the training images of an epoch (counted from 0) in a run of `epochs`, in pixels.

    The size grows on a line between the two epochs of `size_ramp`, rounded to the nearest multiple of `size_multiple`.
    """
    first, last = (round(share * epochs, PRECISION) for share in data.size_ramp)
    if not data.size_start or epoch >= last:
        return data.image_size
    if epoch <= first:
        return data.size_start
    grown = data.size_start + (data.image_size - data.size_start) * (epoch - first) / (last - first)
    rounded = round(grown / data.size_multiple) * data.size_multiple
    return min(max(rounded, data.size_start), data.image_size)


def sizes_of(data: DataSettings, epochs: int) -> list[int]:
    """Return the different sizes of a run, in pixels, smallest first."""
    return sorted({size_of(data, epoch, epochs) for epoch in range(epochs)})
