"""What a training step of ResNet-50 moves through a GPU's memory, and the images per second that this allows.

Counted from the architecture (He et al., arXiv:1512.03385, with the stride in the 3x3 convolution, as torchvision has
it), at 224 pixels, in 16 bits. Each kernel reads its inputs from memory and writes its outputs there: caches help
where a tensor is small, which is left out, as are max pooling, the head and the weights.

eager      convolution, BatchNorm, ReLU and the addition are kernels of their own
compiled   BatchNorm's statistics are a pass of their own; normalisation, addition and ReLU are one kernel, and
           backward's masks and sums are parts of BatchNorm's two passes

Kernels overlap little, so the time is that of memory at a share of its bandwidth plus that of the convolutions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

RECORD = 7950  # img/s on an H200: MLPerf Training v4.0, ResNet-50 on 8 GPUs
BYTES = 2  # of a number in 16 bits
BANDWIDTH_SHARE = 0.85  # of the data sheet's; assumed
# TFLOP/s of convolutions in 16 bits; assumed, for H100 and H200 as about half of the data sheet's
REACHED = {"A100 40 GB": 230.0, "H100 SXM": 500.0, "H200": 500.0}
TB_PER_S = {"A100 40 GB": 1.555, "H100 SXM": 3.35, "H200": 4.8}  # NVIDIA's data sheets
STAGES = ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7))  # width, blocks, side of the outputs
EXPANSION = 4


@dataclass(frozen=True)
class Conv:
    """A convolution with its BatchNorm: numbers that it reads and writes, and multiply-adds, for an image."""

    inputs: int
    outputs: int
    multiplications: int
    relu: bool  # follows its BatchNorm, after the addition where there is one
    added: bool  # something is added to its BatchNorm's outputs


def convolutions() -> Iterator[Conv]:
    """Yield ResNet-50's convolutions."""
    yield _conv(3, 224, 64, 112, 7)
    before, side = 64, 56
    for width, blocks, outer in STAGES:
        for block in range(blocks):
            inner = side if block == 0 else outer
            yield _conv(before, inner, width, inner, 1)
            yield _conv(width, inner, width, outer, 3)
            yield _conv(width, outer, EXPANSION * width, outer, 1, added=True)
            if block == 0:
                yield _conv(before, inner, EXPANSION * width, outer, 1, relu=False)
            before = EXPANSION * width
        side = outer


def _conv(  # noqa: PLR0917
    before: int, inner: int, after: int, outer: int, kernel: int, relu: bool = True, added: bool = False
) -> Conv:
    outputs = after * outer**2
    return Conv(before * inner**2, outputs, outputs * before * kernel**2, relu, added)


def flop() -> float:
    """Floating-point operations of a training step for an image: backward takes twice those of forward."""
    head = EXPANSION * STAGES[-1][0] * 1000
    return 3.0 * 2.0 * (sum(conv.multiplications for conv in convolutions()) + head)


def megabytes(compiled: bool) -> float:
    """Return what a step moves for an image, in MB."""
    found = list(convolutions())
    read, written = sum(conv.inputs for conv in found), sum(conv.outputs for conv in found)
    relu = sum(conv.outputs for conv in found if conv.relu)
    added = sum(conv.outputs for conv in found if conv.added)
    convolved = 3 * read + 3 * written  # forward; the gradient of the weights; that of the inputs
    if compiled:
        forward = 2 * written + added + relu  # statistics; normalise, add, cut off
        backward = 2 * relu + written + 2 * added + 2 * relu + 2 * written  # sums, with the branches joined; gradient
    else:
        forward = 3 * written + 2 * relu + 3 * added
        backward = 5 * written + 3 * relu + 3 * added
    return BYTES * (convolved + forward + backward) / 1e6


def rate(gpu: str, compiled: bool) -> float:
    """Return the images per second that memory and convolutions allow on a GPU."""
    memory = megabytes(compiled) / (TB_PER_S[gpu] * 1e6 * BANDWIDTH_SHARE)
    return 1 / (memory + flop() / (REACHED[gpu] * 1e12))
