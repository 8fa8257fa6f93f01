"""The tensors of well-known models, by name and shape, without building the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sparse_mpi.sparse import Layout

Named = tuple[str, tuple[int, ...]]  # a tensor's name and shape
Tensors = tuple[Named, ...]  # in the order of the flat gradient

VGG16_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
RESNET50_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # bottlenecks, width


def vgg16(classes: int = 10, channels: int = 3) -> Tensors:
    """VGG-16 with batch normalisation as used on CIFAR, and by `train/vgg.py`: 14,728,266 parameters."""
    found: list[Named] = []
    inputs, layer = channels, 0
    for block in VGG16_BLOCKS:
        for width in block:
            found += _layer(f"features.{layer}", width, inputs, 3, 3)
            found += _layer(f"features.{layer + 1}", width)
            inputs, layer = width, layer + 3
        layer += 1  # pooling
    return (*found, *_layer("classifier", classes, inputs))


def resnet50(classes: int = 1000) -> Tensors:
    """ResNet-50 for ImageNet (He et al., CVPR'16): 25,557,032 parameters."""
    found: list[Named] = [("conv1.weight", (64, 3, 7, 7)), *_layer("bn1", 64)]
    inputs = 64
    for stage, (blocks, width) in enumerate(RESNET50_STAGES, 1):
        for block in range(blocks):
            name, wide = f"layer{stage}.{block}", 4 * width
            convolutions = ((width, inputs, 1, 1), (width, width, 3, 3), (wide, width, 1, 1))
            for number, shape in enumerate(convolutions, 1):
                found += [(f"{name}.conv{number}.weight", shape), *_layer(f"{name}.bn{number}", shape[0])]
            if block == 0:
                found += [(f"{name}.downsample.0.weight", (wide, inputs, 1, 1)), *_layer(f"{name}.downsample.1", wide)]
            inputs = wide
    return (*found, *_layer("fc", classes, inputs))


def bert(layers: int = 12, hidden: int = 768) -> Tensors:
    """BERT, uncased, with its pooler: 109,482,240 parameters as BERT-base (Devlin et al., NAACL'19).

    4 layers of 512 are the 28,763,648 of BERT-small (Turc et al., 2019).
    """
    rows = {"word": 30522, "position": 512, "token_type": 2}
    found: list[Named] = [(f"embeddings.{name}_embeddings.weight", (count, hidden)) for name, count in rows.items()]
    found += _layer("embeddings.LayerNorm", hidden)
    for layer in range(layers):
        name = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            found += _layer(f"{name}.attention.{part}", hidden, hidden)
        found += _layer(f"{name}.attention.output.LayerNorm", hidden)
        found += _layer(f"{name}.intermediate.dense", 4 * hidden, hidden)
        found += _layer(f"{name}.output.dense", hidden, 4 * hidden)
        found += _layer(f"{name}.output.LayerNorm", hidden)
    return (*found, *_layer("pooler.dense", hidden, hidden))


def gpt2(layers: int = 12, hidden: int = 768) -> Tensors:
    """GPT-2 small (Radford et al., 2019): 124,439,808 parameters."""
    found: list[Named] = [("wte.weight", (50257, hidden)), ("wpe.weight", (1024, hidden))]
    for layer in range(layers):
        name = f"h.{layer}"
        found += _layer(f"{name}.ln_1", hidden)
        parts = {"attn.c_attn": (1, 3), "attn.c_proj": (1, 1), "mlp.c_fc": (1, 4), "mlp.c_proj": (4, 1)}
        for part, (inputs, outputs) in parts.items():
            if part == "mlp.c_fc":
                found += _layer(f"{name}.ln_2", hidden)
            found += [(f"{name}.{part}.weight", (inputs * hidden, outputs * hidden))]
            found += [(f"{name}.{part}.bias", (outputs * hidden,))]
    return (*found, *_layer("ln_f", hidden))


def _layer(name: str, *shape: int) -> Tensors:
    return (f"{name}.weight", shape), (f"{name}.bias", shape[:1])


MODELS: dict[str, Callable[[], Tensors]] = {
    "vgg16": vgg16,
    "resnet50": resnet50,
    "bert-base": bert,
    "bert-small": partial(bert, layers=4, hidden=512),
    "gpt2": gpt2,
}


def layout(model: str) -> Layout:
    return Layout.of([shape for _, shape in MODELS[model]()])
