"""The tensors of well-known models, by name and shape: what a gradient looks like without building the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from sparse_mpi.sparse import Layout

Tensors = tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes, in the order of the flat gradient

VGG16_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
RESNET50_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # bottlenecks, width


def vgg16(classes: int = 10, channels: int = 3) -> Tensors:
    """VGG-16 with batch normalisation as used on CIFAR, and by `train/vgg.py`: 14,728,266 parameters."""

    def tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
        inputs, layer = channels, 0
        for block in VGG16_BLOCKS:
            for width in block:
                yield from _convolution(f"features.{layer}", width, inputs, 3, bias=True)
                yield from _affine(f"features.{layer + 1}", width)
                inputs, layer = width, layer + 3
            layer += 1  # pooling
        yield from _linear("classifier", classes, inputs)

    return tuple(tensors())


def resnet50(classes: int = 1000) -> Tensors:
    """ResNet-50 for ImageNet (He et al., CVPR'16): 25,557,032 parameters."""

    def tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
        yield from _convolution("conv1", 64, 3, 7)
        yield from _affine("bn1", 64)
        inputs = 64
        for stage, (blocks, width) in enumerate(RESNET50_STAGES, 1):
            for block in range(blocks):
                name = f"layer{stage}.{block}"
                for number, (out, into, kernel) in enumerate(
                    ((width, inputs, 1), (width, width, 3), (4 * width, width, 1)), 1
                ):
                    yield from _convolution(f"{name}.conv{number}", out, into, kernel)
                    yield from _affine(f"{name}.bn{number}", out)
                if block == 0:
                    yield from _convolution(f"{name}.downsample.0", 4 * width, inputs, 1)
                    yield from _affine(f"{name}.downsample.1", 4 * width)
                inputs = 4 * width
        yield from _linear("fc", classes, inputs)

    return tuple(tensors())


def bert(layers: int = 12, hidden: int = 768) -> Tensors:
    """BERT, uncased, with its pooler: 109,482,240 parameters as BERT-base (Devlin et al., NAACL'19).

    4 layers of 512 are the 28,763,648 of BERT-small (Turc et al., 2019).
    """
    inner = 4 * hidden

    def tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
        for name, rows in (("word", 30522), ("position", 512), ("token_type", 2)):
            yield f"embeddings.{name}_embeddings.weight", (rows, hidden)
        yield from _affine("embeddings.LayerNorm", hidden)
        for layer in range(layers):
            name = f"encoder.layer.{layer}"
            for part in ("self.query", "self.key", "self.value", "output.dense"):
                yield from _linear(f"{name}.attention.{part}", hidden, hidden)
            yield from _affine(f"{name}.attention.output.LayerNorm", hidden)
            yield from _linear(f"{name}.intermediate.dense", inner, hidden)
            yield from _linear(f"{name}.output.dense", hidden, inner)
            yield from _affine(f"{name}.output.LayerNorm", hidden)
        yield from _linear("pooler.dense", hidden, hidden)

    return tuple(tensors())


MODELS: dict[str, Callable[[], Tensors]] = {
    "vgg16": vgg16,
    "resnet50": resnet50,
    "bert-base": bert,
    "bert-small": partial(bert, layers=4, hidden=512),
}


def layout(model: str) -> Layout:
    """Return the layout of a model's gradient."""
    return Layout.of([shape for _, shape in MODELS[model]()])


def _convolution(
    name: str, outputs: int, inputs: int, kernel: int, bias: bool = False
) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (outputs, inputs, kernel, kernel)
    if bias:
        yield f"{name}.bias", (outputs,)


def _affine(name: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _linear(name: str, outputs: int, inputs: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)
