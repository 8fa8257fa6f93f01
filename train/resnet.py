"""Train a ResNet on images: a replica on every MPI rank, gradients reduced sparsely.

mpiexec -n 4 python train/resnet.py  ResNet-20, digits, Elect, density 2.75 %
srun --mpi=pmix -n 4 python train/resnet.py --data cifar10 --data-dir ~/datasets   ResNet-20 as published
srun --mpi=pmix -n 8 python train/resnet.py --data cifar100 --data-dir ~/datasets  ResNet-50 as published for ADTopk
srun --mpi=pmix -n 8 python train/resnet.py --data imagenet --data-dir ~/imagenet  ResNet-152 likewise
"""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from dataclasses import replace

from torch import nn

from sparse_mpi.cli.values import Value
from sparse_mpi.comm import Comm
from sparse_train.data import ImageBatches
from sparse_train.models.vision import FORMS, ResNet
from sparse_train.tasks import images
from sparse_train.tasks.task import Task
from sparse_train.trainer.program import Program, Settings, Tiny

SETTINGS = {
    "digits": replace(images.DIGITS, lr=0.1),
    "fashion-mnist": replace(images.FASHION_MNIST, lr=0.1),
    # He et al., CVPR 2016: 128 images a step, here on 4 ranks
    "cifar10": Settings(epochs=164, batch_size=32, lr=0.1, milestones=(81, 122), weight_decay=1e-4),
    "cifar100": images.ADTOPK,
    "imagenet": images.ADTOPK,
}
DEPTHS = {"cifar100": 50, "imagenet": 152}  # depths for these settings; 20 for the others
TINY = Tiny("digits", Settings(epochs=2, batch_size=16, lr=0.1, warmup_epochs=0.5, momentum=0.5))


def make(args: Namespace, comm: Comm) -> Task:
    args.depth = args.depth or (20 if args.tiny else DEPTHS.get(args.data, 20))
    width = FORMS[args.depth].width // (4 if args.tiny else 1)

    def build(batches: ImageBatches) -> nn.Module:
        return ResNet(args.depth, batches.classes, batches.channels, batches.image_size, width, args.zero_gamma)

    return images.image_task(args, comm, build)


def extend(parser: ArgumentParser) -> None:
    images.extend(parser)
    add = parser.add_argument_group("ResNet").add_argument
    published = ", ".join(f"{depth} for {data}" for data, depth in DEPTHS.items())
    depth = Value(int, "a whole number", "20")
    add("--depth", type=depth, choices=tuple(FORMS), help=f"layers (default: 20, {published})")
    text = "start every block as its shortcut alone, which steadies the first epochs of deep ones"
    add("--zero-gamma", action=BooleanOptionalAction, default=False, help=f"{text} (default: --no-zero-gamma)")


PROGRAM = Program("resnet", __doc__ or "", make, SETTINGS, images.FOLDERS, tiny=TINY, extend=extend)

if __name__ == "__main__":
    PROGRAM.run()
