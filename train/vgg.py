"""Train VGG-16 on images: a replica on every MPI rank, gradients reduced sparsely.

mpiexec -n 4 python train/vgg.py                                     digits, Ok-Topk, density 1 %
srun -n 16 python train/vgg.py --data cifar10 --data-dir ~/datasets  as published for Ok-Topk
"""

from __future__ import annotations

from argparse import Namespace

import torch

from arguments import Settings, parse
from data import DATASETS
from data.batches import Batches
from job import agreed, run, threads_per_rank
from loop import Training, conclude
from metrics import record
from models.vgg import VGG16
from planning import Planning
from sparse_mpi.comm import Comm

SETTINGS = {
    # Little momentum: at 1 % the residual already lets a gradient act for many steps
    "digits": Settings(
        density=0.01,
        epochs=12,
        batch_size=16,
        lr=0.05,
        warmup_epochs=2,
        milestones=(9,),
        momentum=0.5,
        weight_decay=1e-4,
    ),
    "fashion-mnist": Settings(
        density=0.01,
        epochs=20,
        batch_size=32,
        lr=0.05,
        warmup_epochs=1,
        milestones=(12, 17),
        momentum=0.5,
        weight_decay=1e-4,
    ),
    # Li and Hoefler, Ok-Topk, PPoPP 2022: 16 ranks
    "cifar10": Settings(
        density=0.02,
        epochs=161,
        batch_size=16,
        lr=0.1,
        warmup_epochs=10,
        milestones=(81, 122, 155),
        weight_decay=1e-4,
    ),
    # ADTopk, HPDC 2024: 8 ranks
    "cifar100": Settings(
        density=0.01,
        epochs=80,
        batch_size=32,
        lr=0.0125,
        lr_times_ranks=True,
        warmup_epochs=5,
        milestones=(30, 60, 80),
        weight_decay=5e-5,
    ),
}


def main(args: Namespace, comm: Comm) -> None:
    """Train on this rank, one of ``comm.size``."""
    args.threads = args.threads or threads_per_rank(comm)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    source = DATASETS[args.data]
    images = agreed(comm, lambda: source.load(args.data_dir))
    padding, flip = (source.padding, source.flip) if args.augment else (0, False)
    batches = agreed(
        comm,
        lambda: Batches(images, args.batch_size, comm.rank, comm.size, args.seed, args.image_size, padding, flip),
    )

    model = VGG16(images.classes, batches.channels)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, args.momentum, weight_decay=args.weight_decay, fused=True)
    planning = Planning(model, args, comm)
    reducer = planning.reducer()

    metrics = agreed(comm, lambda: record(args, comm, k=reducer.k, parameters=reducer.layout.size))
    outcome = Training(model, optimizer, reducer, batches, args, comm, metrics, planning=planning).run()
    conclude(outcome, args, comm, metrics)


if __name__ == "__main__":
    run(
        main,
        parse("vgg", __doc__ or "", SETTINGS, {name: source.folder for name, source in DATASETS.items()}),
    )
