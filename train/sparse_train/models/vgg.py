"""VGG-16 with normalisation and one linear layer on top, as it is used on CIFAR."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))  # output channels of convolutions
# Over the batch; or over groups of 8 channels of one image, which does not depend on what else a rank sees
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(channels // 8, channels),
}


class VGG16(nn.Module):
    """VGG-16: 14,728,266 parameters for 10 classes of 3 channels.

    Each block halves the image, rounding up, so that images of any size may enter: one of 32 x 32 leaves the
    last block as 1 x 1, a smaller one gets there earlier and stays so, a larger one is averaged in the end.

    Args:
        slimness: divides the channels of all convolutions; 8 leaves a 64th of the parameters.
        norm: normalisation, see `NORMS`.
    """

    def __init__(self, classes: int = 10, channels: int = 3, slimness: int = 1, norm: str = "batch") -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for block in BLOCKS:
            for width in (wide // slimness for wide in block):
                layers += [nn.Conv2d(channels, width, 3, padding=1), NORMS[norm](width), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``(B, classes)`` of images ``(B, channels, H, W)``."""
        return self.classifier(self.features(images))
