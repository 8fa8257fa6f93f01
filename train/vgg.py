"""Train VGG-16 on images: a replica on every MPI rank, gradients reduced sparsely.

mpiexec -n 4 python train/vgg.py                                                digits, Elect, density 2.75 %
mpiexec -n 4 python train/vgg.py --tiny                                         a slim VGG, in seconds
srun --mpi=pmix -n 16 python train/vgg.py --data cifar10 --data-dir ~/datasets  settings published for Ok-Topk
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace

from sparse_mpi.comm import Comm
from sparse_train.models.vision import NORMS, VGG16
from sparse_train.tasks.images import ADTOPK, DIGITS, FASHION_MNIST, FOLDERS, ImageTask, extend, image_task
from sparse_train.trainer.program import Program, Settings, Tiny

SETTINGS = {
    "digits": replace(DIGITS, epochs=8, batch_size=32, warmup_epochs=1, milestones=(6,)),  # least time to 97 %
    "fashion-mnist": FASHION_MNIST,
    # Li and Hoefler, Ok-Topk, PPoPP 2022: 16 ranks
    "cifar10": Settings(
        density=0.02, epochs=161, batch_size=16, lr=0.1, warmup_epochs=10, milestones=(81, 122, 155), weight_decay=1e-4
    ),
    "cifar100": ADTOPK,
}
TINY = Tiny("digits", Settings(epochs=2, batch_size=20, lr=0.1, warmup_epochs=0.5, momentum=0.75))


def make(args: Namespace, comm: Comm) -> ImageTask:
    slimness = 8 if args.tiny else 1
    return image_task(args, comm, lambda batches: VGG16(batches.classes, batches.channels, slimness, args.norm))


def options(parser: ArgumentParser) -> None:
    extend(parser)
    text = "normalise over the batch, or over groups of channels, where ranks see different classes (default: batch)"
    parser.add_argument("--norm", choices=tuple(NORMS), default="batch", help=text)


PROGRAM = Program("vgg", __doc__ or "", make, SETTINGS, FOLDERS, TINY, options)

if __name__ == "__main__":
    PROGRAM.run()
