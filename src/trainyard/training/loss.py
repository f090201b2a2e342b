"""The training loss, summed over samples: divided by the global batch, it is a process's share of the mean."""

import torch
from torch import Tensor
from torch.nn import functional

from trainyard.config.sections.learning import LossSettings
from trainyard.training.mixup import one_hot


def loss_sum(outputs: Tensor, targets: Tensor, settings: LossSettings) -> Tensor:
    """Loss of outputs (N, classes) against labels (N,) or probabilities (N, classes), summed over the N samples.

    Computed in fp32, or in fp64 where the outputs are fp64.
    """
    outputs = outputs if outputs.dtype == torch.float64 else outputs.float()
    if settings.name == "bce":
        return _binary(outputs, targets, settings)
    return functional.cross_entropy(outputs, targets, reduction="sum", label_smoothing=settings.label_smoothing)


def _binary(outputs: Tensor, targets: Tensor, settings: LossSettings) -> Tensor:
    """Each class by itself, yes or no; a sample's loss is the mean over classes, as in timm's BinaryCrossEntropy.

    Smoothing comes first; a target above the threshold then counts as 1, others as 0 (threshold 0: left as they are).
    """
    classes = outputs.size(1)
    if targets.dim() == 1:
        targets = one_hot(targets, classes, outputs.dtype)
    targets = targets.to(outputs.dtype) * (1 - settings.label_smoothing) + settings.label_smoothing / classes
    if settings.bce_threshold:
        targets = (targets > settings.bce_threshold).to(outputs.dtype)
    return functional.binary_cross_entropy_with_logits(outputs, targets, reduction="sum") / classes
