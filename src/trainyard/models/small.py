"""A residual network for small images on CPUs: the demo's, and the tests'.

ResNet-18 (He et al., "Deep Residual Learning for Image Recognition", arXiv:1512.03385) with one block a stage and a
quarter of its channels: at 32 x 32 a ninth of its CPU time per image, and it learns more in as few steps.
It is timm's ResNet with the arguments TIMM, parameter by parameter, so what it publishes loads there. It imports
neither timm nor torchvision, whose imports cost a rank as much as many steps.
"""

from torch import Tensor, nn

STEM, CHANNELS = 64, (16, 32, 64, 128)
TIMM = {"layers": [1] * len(CHANNELS), "channels": list(CHANNELS)}  # of timm.create_model("resnet18", ...)


class Block(nn.Module):
    """Two convolutions and a shortcut, (N, before, H, W) to (N, channels, H / stride, W / stride)."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = nn.Sequential(
            nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
        )  # fmt: skip
        nn.init.zeros_(self.bn2.weight)  # the block begins as its shortcut

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        inner = nn.functional.relu(self.bn1(self.conv1(x)))
        return nn.functional.relu(self.bn2(self.conv2(inner)) + self.downsample(x))


class ResNet10(nn.Module):
    """Images (N, 3, H, W), normalised, to logits (N, classes); sides of at least 32 pixels keep all stages of use."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, STEM, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(STEM)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages = zip((STEM, *CHANNELS[:-1]), CHANNELS, (1, 2, 2, 2), strict=True)
        self.layer1, self.layer2, self.layer3, self.layer4 = (nn.Sequential(Block(*stage)) for stage in stages)
        self.fc = nn.Linear(CHANNELS[-1], num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = self.maxpool(nn.functional.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def resnet10(num_classes: int) -> nn.Module:
    """Return the network for so many classes; as a setting: `model.name: trainyard.models.small:resnet10`."""
    return ResNet10(num_classes)
