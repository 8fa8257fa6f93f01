"""Train a Vision Transformer on images: a replica on every MPI rank, gradients reduced sparsely.

mpiexec -n 4 python train/vit.py                                                4 layers, digits, Elect, density 2.75 %
srun --mpi=pmix -n 8 python train/vit.py --data cifar10 --data-dir ~/datasets   6 layers, patches of 4 x 4
srun --mpi=pmix -n 8 python train/vit.py --data imagenet --data-dir ~/imagenet  ViT-Base/16
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace

from torch import nn

from sparse_mpi.cli.values import integer
from sparse_mpi.comm import Comm
from sparse_train.data import ImageBatches
from sparse_train.models.vision import SIZES, ViT
from sparse_train.tasks import images
from sparse_train.tasks.task import Task
from sparse_train.trainer.program import Program, Settings, Tiny

# Weights start at random: 1e-3, which needs a warm-up, instead of the 5e-5 that suits trained ones
SCRATCH = Settings(
    epochs=100, batch_size=32, lr=1e-3, warmup_epochs=5, weight_decay=0.05, optimizer="adamw", schedule="linear"
)

SETTINGS = {
    "digits": replace(SCRATCH, epochs=30, batch_size=16),
    "fashion-mnist": replace(SCRATCH, epochs=30),
    "cifar10": SCRATCH,
    "cifar100": SCRATCH,
    # ADTopk, HPDC 2024. That rate suits trained weights: --lr 5e-4, DeiT's for 512 images a step, learns more from none
    "imagenet": replace(SCRATCH, lr=5e-5, weight_decay=0.0),
}
SIZE = {"digits": "micro", "imagenet": "base"}  # sizes for these settings; mini for the others
TINY = Tiny("digits", replace(SCRATCH, epochs=2, batch_size=16, lr=3e-3, warmup_epochs=0.5))


def make(args: Namespace, comm: Comm) -> Task:
    args.size = args.size or ("micro" if args.tiny else SIZE.get(args.data, "mini"))

    def build(batches: ImageBatches) -> nn.Module:
        return ViT(args.size, batches.classes, batches.channels, batches.image_size, args.patch_size)

    return images.image_task(args, comm, build)


def extend(parser: ArgumentParser) -> None:
    images.extend(parser)
    add = parser.add_argument_group("ViT").add_argument
    text = "of the Transformer (default: mini, base for imagenet, micro for digits and with --tiny)"
    add("--size", choices=tuple(SIZES), help=text)
    text = "cut images into patches of P x P (default: 4 for images below 64 pixels, else 16)"
    add("--patch-size", type=integer(1), metavar="P", help=text)


PROGRAM = Program("vit", __doc__ or "", make, SETTINGS, images.FOLDERS, tiny=TINY, extend=extend)

if __name__ == "__main__":
    PROGRAM.run()
