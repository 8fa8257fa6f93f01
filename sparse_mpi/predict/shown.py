"""The measured cost of sparse sums in accuracy, from docs/explanation/accuracy.md."""

from __future__ import annotations

from typing import NamedTuple

from sparse_mpi.reduction.arguments import usual_density

TRAINING = "elect"  # the default of all that trains, for which the sentences hold
PAGE = "docs/explanation/accuracy.md"
OPTIMIZERS = ("sgd", "adam", "adamw")
IMAGES, LANGUAGE = "images", "language"
KINDS = {"vgg16": IMAGES, "resnet50": IMAGES}  # kinds of models; all others are of language
USUAL = {IMAGES: "sgd", LANGUAGE: "adamw"}  # optimizers


WORDS = {
    (IMAGES, "sgd"): "VGG with SGD (Fashion-MNIST, 8 ranks, 5 seeds) was level with dense, +1.9 +- 2.1 points; "
    "ResNet-20 at 5 % differed by -2.4 +- 22 (3 seeds)",
    (IMAGES, "adamw"): "a ViT with AdamW (digits, 8 ranks, 3 seeds) differed from dense by -0.6 +- 1.8 points",
    (LANGUAGE, "adamw"): "a tiny GPT-2 with AdamW and clip_norm=1 (4 and 8 ranks, 3 seeds) was level, 0.9 % of "
    "perplexity ahead of dense and 0.1 % behind, one of 11.5 million 1.9 % behind at half of dense's best rate and "
    "12.5 % at it (258 steps)",
    (LANGUAGE, "adam"): "a character transformer with Adam and clip_norm=1 (4 ranks, 2 seeds) was 0.019 and 0.028 "
    "of loss behind dense",
}
# Images lost accuracy by them
LOCAL = (
    "a tiny GPT-2 with AdamW lost 21 to 33 % of perplexity at 8 to 32 local steps, and nothing with batches of 8 "
    "samples (docs/explanation/networks.md)"
)


class Shown(NamedTuple):
    """The default of training beside dense."""

    density: float
    words: str
    use: str  # the optimizer in a program, with the arguments that were measured
    local: str  # the measured cost of local steps; "" where they are not advised


def shown(model: str, optimizer: str | None) -> Shown:
    """Return the measurements for models of ``model``'s kind, a name of `MODELS` or "", with this optimizer.

    Without an optimizer, with the kind's usual one.
    """
    kind = KINDS.get(model, LANGUAGE) if model else ""
    by = optimizer or USUAL.get(kind, "sgd")
    unknown = "VGG with SGD was level with dense, a tiny GPT-2 with AdamW and clip_norm=1 1.6 % of perplexity behind"
    nothing = f"nothing was shown for models of {kind} with {by}" if kind else unknown
    density = usual_density(TRAINING, second_moment=by != "sgd")
    use = f"DistributedOptimizer(optimizer{', clip_norm=1' if by != 'sgd' and kind != IMAGES else ''})"
    return Shown(density, WORDS.get((kind, by), nothing), use, "" if kind == IMAGES else LOCAL)
