"""A model of one's own: `model.name: compact:compact`, with this file's folder on PYTHONPATH."""

from torch import Tensor, nn


class Compact(nn.Module):
    """Four convolutions and a linear layer, for images of any size from 16 pixels."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 16), (16, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(128, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """From normalised images (N, 3, height, width) to logits (N, num_classes)."""
        logits: Tensor = self.head(self.features(images).mean((2, 3)))
        return logits


def compact(num_classes: int) -> nn.Module:
    """Return the model with as many outputs as the dataset has classes; a second parameter may be `image_size`."""
    return Compact(num_classes)
