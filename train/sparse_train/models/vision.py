"""Classifiers of images.

VGG-16 with normalisation and one linear layer on top, as it is used on CIFAR. ResNets (He et al., Deep Residual
Learning for Image Recognition, CVPR 2016) of 20 layers as they are used on CIFAR, of 50, 101 and 152 as on ImageNet.
Vision Transformers (Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021), built by `transformers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from sparse_train.packages import needed

SMALL = 64  # pixels: smaller images enter the first stage of a ResNet at their own size, and a ViT by patches of 4 x 4
BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))  # output channels of convolutions
# Over the batch; or over groups of 8 channels of one image, independent of a rank's other images
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(channels // 8, channels),
}
# Layers, width and heads of a Transformer's encoder
SIZES = {
    "base": (12, 768, 12),  # 86,567,656 parameters for ImageNet, as published
    "small": (12, 384, 6),  # Touvron et al., DeiT, 2021
    "mini": (6, 192, 3),  # few small images
    "micro": (4, 64, 2),
}


class Residual(nn.Module):
    def __init__(self, body: nn.Sequential, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, images: Tensor) -> Tensor:
        """Return ``(B, channels, H, W)``, with fewer pixels and more channels than the input where a stage begins."""
        return relu(self.body(images) + self.shortcut(images))


class Subsample(nn.Module):
    """A shortcut without parameters: every ``stride``-th pixel, ``more`` channels of zeros (option A of the paper)."""

    def __init__(self, stride: int, more: int) -> None:
        super().__init__()
        self._stride, self._more = stride, more

    def forward(self, images: Tensor) -> Tensor:
        return pad(images[:, :, :: self._stride, :: self._stride], (0, 0, 0, 0, 0, self._more))


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """Make a convolution that keeps an image's size, except for ``stride``, and its normalisation."""
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]


def basic(inputs: int, width: int, stride: int) -> Residual:
    body = nn.Sequential(*convolution(inputs, width, 3, stride), nn.ReLU(inplace=True), *convolution(width, width, 3))
    return Residual(body, nn.Identity() if inputs == width else Subsample(stride, width - inputs))


def bottleneck(inputs: int, width: int, stride: int) -> Residual:
    """Make a block of convolutions of 1 x 1, 3 x 3 and 1 x 1, with ``4 width`` channels out.

    The one of 3 x 3 strides, as is usual today.
    """
    outputs = 4 * width
    body = nn.Sequential(
        *convolution(inputs, width, 1),
        nn.ReLU(inplace=True),
        *convolution(width, width, 3, stride),
        nn.ReLU(inplace=True),
        *convolution(width, outputs, 1),
    )
    same = inputs == outputs and stride == 1
    return Residual(body, nn.Identity() if same else nn.Sequential(*convolution(inputs, outputs, 1, stride)))


class Form(NamedTuple):
    blocks: tuple[int, ...]  # blocks of each stage
    block: Callable[[int, int, int], Residual]
    expansion: int  # channels that leave a block, in widths
    width: int  # width of the first stage; each further one has twice the width
    pools: bool  # True: large images are brought to a quarter of their size ahead of the first stage


FORMS = {
    20: Form((3, 3, 3), basic, 1, 16, pools=False),
    50: Form((3, 4, 6, 3), bottleneck, 4, 64, pools=True),
    101: Form((3, 4, 23, 3), bottleneck, 4, 64, pools=True),
    152: Form((3, 8, 36, 3), bottleneck, 4, 64, pools=True),
}


class ResNet(nn.Module):
    """A ResNet for square images.

    ResNet-20 has 269,722 parameters for 10 classes of 3 channels; ResNet-50, 101 and 152 have 25,557,032, 44,549,160
    and 60,192,808 for the 1000 classes of ImageNet. Images of less than 64 pixels a side enter the last three by a
    convolution of 3 x 3 instead of one of 7 x 7 and a maximum, which together leave a sixteenth of the pixels.

    Args:
        depth: a key of `FORMS`.
        width: channels of the first stage; None takes the paper's, 16 or 64.
        zero_gamma: True: every block starts as its shortcut alone, its last normalisation giving zeros (Goyal et al.,
            2017).
    """

    def __init__(
        self,
        depth: int,
        classes: int = 10,
        channels: int = 3,
        image_size: int = 32,
        width: int | None = None,
        zero_gamma: bool = False,
    ) -> None:
        super().__init__()
        form = FORMS[depth]
        width = width or form.width
        if form.pools and image_size >= SMALL:
            stem = [*convolution(channels, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
        else:
            stem = [*convolution(channels, width, 3), nn.ReLU(inplace=True)]
        self.stem = nn.Sequential(*stem)
        stages, inputs = [], width
        for stage, count in enumerate(form.blocks):
            for number in range(count):
                stages.append(form.block(inputs, width << stage, 2 if stage and not number else 1))
                inputs = form.expansion * (width << stage)
        self.blocks = nn.Sequential(*stages)
        self.classifier = nn.Linear(inputs, classes)
        self._initialise(stages, zero_gamma)

    def _initialise(self, blocks: list[Residual], zero_gamma: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        for block in blocks if zero_gamma else []:
            nn.init.zeros_(block.body[-1].get_parameter("weight"))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.blocks(self.stem(images)).mean((2, 3)))


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
        return self.classifier(self.features(images))


class ViT(nn.Module):
    """A classifier of square images, from random weights.

    Args:
        size: a key of `SIZES`.
        patch: height and width of a patch; None chooses one that suits ``image_size``.

    Raises ImportError: transformers is not installed; ValueError: patches do not tile the images.
    """

    def __init__(
        self, size: str, classes: int = 1000, channels: int = 3, image_size: int = 224, patch: int | None = None
    ) -> None:
        super().__init__()
        transformers = needed("transformers", "ViT")
        patch = patch or (4 if image_size < SMALL else 16)
        if image_size % patch:
            near = max(patch, image_size // patch * patch)
            raise ValueError(
                f"patch must divide the image size, got patches of {patch} and images of {image_size} pixels; "
                f"--image-size {near} resizes them"
            )
        layers, width, heads = SIZES[size]
        config = transformers.ViTConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            image_size=image_size,
            patch_size=patch,
            num_channels=channels,
            initializer_range=width**-0.5,  # transformers' 0.02 lets narrow ones hardly start to learn
        )
        config.num_labels = classes
        self.classifier = transformers.ViTForImageClassification(config)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(pixel_values=images).logits
