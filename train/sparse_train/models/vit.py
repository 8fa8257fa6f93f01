"""Vision Transformers (Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021), built by `transformers`."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn


class Size(NamedTuple):
    """The size of a Transformer's encoder."""

    layers: int
    width: int
    heads: int


SIZES = {
    "base": Size(12, 768, 12),  # 86,567,656 parameters for ImageNet, as published
    "small": Size(12, 384, 6),  # Touvron et al., DeiT, 2021
    "mini": Size(6, 192, 3),  # for small images, of which there are few
    "micro": Size(4, 64, 2),
}
SMALL = 64  # pixels: smaller images are cut into patches of 4 x 4, others of 16 x 16 as published


class ViT(nn.Module):
    """A classifier of square images, from random weights.

    Args:
        size: a key of `SIZES`.
        patch: height and width of a patch; None chooses one that suits ``image_size``.

    Raises:
        ImportError: transformers is not installed.
        ValueError: patches do not tile the images.
    """

    def __init__(
        self, size: str, classes: int = 1000, channels: int = 3, image_size: int = 224, patch: int | None = None
    ) -> None:
        super().__init__()
        try:
            from transformers import ViTConfig, ViTForImageClassification
        except ImportError:
            raise ImportError("a ViT needs transformers: pip install 'transformers>=4.50'") from None
        patch = patch or (4 if image_size < SMALL else 16)
        if image_size % patch:
            near = max(patch, image_size // patch * patch)
            raise ValueError(
                f"patch must divide the image size, got patches of {patch} and images of {image_size} pixels; "
                f"--image-size {near} resizes them"
            )
        layers, width, heads = SIZES[size]
        config = ViTConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            image_size=image_size,
            patch_size=patch,
            num_channels=channels,
            initializer_range=width**-0.5,  # with transformers' 0.02 narrow ones hardly start to learn
        )
        config.num_labels = classes
        self.classifier = ViTForImageClassification(config)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``(B, classes)`` of images ``(B, channels, image_size, image_size)``."""
        return self.classifier(pixel_values=images).logits
