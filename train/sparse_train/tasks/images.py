"""Classification of images: the task, the settings and the options that several programs share."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sparse_mpi.cli.values import integer
from sparse_mpi.comm import Comm
from sparse_train.data import DATASETS, Batch, ImageBatches
from sparse_train.options.arguments import Settings
from sparse_train.tasks.task import Sums, seeded, sums

FOLDERS = {name: source.folder for name, source in DATASETS.items()}  # data set -> its folder

# Ours. Half of the usual momentum is for late sums: the residual lets a gradient act for long
DIGITS = Settings(epochs=12, batch_size=16, lr=0.05, warmup_epochs=2, milestones=(9,), momentum=0.75, weight_decay=1e-4)
FASHION_MNIST = replace(DIGITS, epochs=20, batch_size=32, warmup_epochs=1, milestones=(12, 17))
# Of ADTopk, HPDC 2024, for VGG-16 and ResNets: 8 ranks
ADTOPK = Settings(
    epochs=80,
    batch_size=32,
    lr=0.0125,
    lr_times_ranks=True,
    warmup_epochs=5,
    milestones=(30, 60, 80),
    weight_decay=5e-5,
)


class ImageTask:
    """A classifier to train on images.

    Args:
        model: turns images into logits ``(B, classes)``.
        batches: this rank's share of the images.
    """

    items = "images"
    headline = "accuracy"
    fingerprint = ""  # a model's shape tells the data sets apart

    def __init__(self, model: nn.Module, batches: ImageBatches) -> None:
        self.model: nn.Module = model
        self.steps: int = batches.steps
        self.share = batches.share
        self._batches = batches

    def train(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        return self._batches.train(epoch, first)

    def test(self) -> Iterator[Batch]:
        return self._batches.test()

    def forward_and_loss(self, batch: Batch) -> tuple[Tensor, Sums]:
        """Return the mean cross entropy, and sums ``(3,)`` of images, cross entropy, and correct classifications."""
        images, labels = batch
        outputs = self.model(images)
        loss = cross_entropy(outputs, labels)
        correct = (outputs.detach().argmax(1) == labels).sum()
        return loss, sums(loss.device, len(labels), loss.detach().double() * len(labels), correct)

    def scores(self, sums: Sums) -> dict[str, float]:
        count, loss, correct = sums.tolist()
        return {"loss": loss / count, "accuracy": correct / count}


def image_task(args: Namespace, comm: Comm, build: Callable[[ImageBatches], nn.Module]) -> ImageTask:
    """Make the task of this rank on the images of ``args``.

    Raises OSError, ValueError, ImportError: the images cannot be read, or are too few.
    """
    batches = DATASETS[args.data].batches(args, comm)
    return ImageTask(seeded(args, lambda: build(batches)), batches)


def extend(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("images").add_argument
    text = "resize images to S x S (default: 224 with imagenet, leave others as they are)"
    add("--image-size", type=integer(1), metavar="S", help=text)
    text = "shift and, where it makes sense, mirror training images at random (default: --augment)"
    add("--augment", action=BooleanOptionalAction, default=True, help=text)
    text = "what each rank trains on: its share of a new order in every epoch, or always its own part of the classes, "
    add("--shards", choices=("shuffled", "sorted"), default="shuffled", help=text + "the hard case (default: shuffled)")
