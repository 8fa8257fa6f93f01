"""Record the gradients of a training run, every rank's own, for `bench volume` and `trace`.

mpiexec -n 4 python train/gradients.py --tiny  vgg: steps 1, 10, 40
mpiexec -n 4 python train/gradients.py --program lstm --tiny --record-steps 5 50 --save runs/lstm.npz --algo topka
python -m sparse_mpi bench volume --ranks 2 4 --gradients runs/gradients.npz --density 0.02

All other options are the program's, whose model, batches, reduction and optimizer train. The learning rate is
--lr from the first step on, a step's gradient is one bucket, and nothing but the file named by --save is written.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_mpi.cli.progress import Bar, progress
from sparse_mpi.cli.records import provenance
from sparse_mpi.cli.values import Parser, integer
from sparse_mpi.comm import Comm
from sparse_mpi.optim import DistributedOptimizer, broadcast_parameters
from sparse_train.options.arguments import new_file
from sparse_train.options.optimization import OPTIMIZERS
from sparse_train.options.reduction import AUTO, algorithm_and_options, feedback_options
from sparse_train.packages import needed
from sparse_train.ranks.job import agreed, run, threads_per_rank
from sparse_train.tasks.task import Task
from sparse_train.trainer.planning import advised
from sparse_train.trainer.survivors import average_buffers, identical

PROGRAMS = ("vgg", "resnet", "vit", "lstm", "transformer", "bert", "gpt2")


def parse(argv: Sequence[str] | None = None) -> Namespace:
    """Return the arguments of the recording, with the options of the program as ``options``."""
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("--program", choices=PROGRAMS, default="vgg", help="which one of this folder (default: vgg)")
    text = "numbers of steps, from 1; training ends with the last (default: 1 10 40)"
    add("--record-steps", type=integer(1), nargs="+", default=[1, 10, 40], metavar="N", help=text)
    text = "the file to write (default: runs/gradients.npz)"
    usual = Path("runs/gradients.npz")
    add("--save", type=new_file("gradients.npz", [".npz"]), default=usual, metavar="FILE", help=text)
    args, rest = ArgumentParser.parse_known_args(parser, argv)  # unknown arguments are the program's
    args.task = import_module(args.program).PROGRAM
    args.options = args.task.parse(rest)
    if args.options.plan:
        parser.error(
            f"argument --plan: nothing is planned here; name an algorithm with --algo, not --plan {args.options.plan}"
        )
    return args


def record(args: Namespace, comm: Comm) -> None:
    """Train on this rank as far as the last step to record; rank 0 writes the file.

    Raises JobError: on all ranks alike, where the data cannot be read or the file not be written.
    """
    options = args.options
    torch.set_num_threads(options.threads or threads_per_rank(comm))
    with Bar(None, "loading data and model", comm.rank == 0 and options.progress):
        task = agreed(comm, lambda: args.task.make(options, comm))
    broadcast_parameters(task.model.state_dict(), comm=comm)
    task.model.train()
    parameters = [parameter for parameter in task.model.parameters() if parameter.requires_grad]
    optimizer = OPTIMIZERS[options.optimizer](parameters, options)
    if options.algo == AUTO:
        options.algo = advised(task.model, options, comm)
    how = feedback_options(options) | algorithm_and_options(options)
    amount = {"k": options.k} if options.k else {"density": options.density}
    optimizer = DistributedOptimizer(optimizer, comm=comm, bucket_cap_mb=None, overlap=False, **amount, **how)
    steps: dict[int, np.ndarray] = {}
    last = max(args.record_steps)
    for number, batch in progress(_batches(task, last), "steps", comm.rank == 0 and options.progress, last):
        optimizer.zero_grad()
        loss, _ = task.forward_and_loss(batch)
        loss.backward()
        if number in args.record_steps:
            steps[number] = _gathered(_flat(parameters), comm)
        optimizer.step()
    average_buffers(task.model, comm)  # done here as at the end of training, so that only weights can differ
    (reducer,) = [bucket.reducer for bucket in optimizer.reduction.buckets]
    facts = {
        "algorithm": options.algo,
        "k": reducer.k,
        "shapes": [tuple(parameter.shape) for parameter in parameters],
        "identical": identical(task.model, comm),
    }
    agreed(comm, lambda: _write(args, steps, facts) if comm.rank == 0 else None)


def _batches(task: Task, last: int) -> Iterator[tuple[int, Any]]:
    batches = (batch for epoch in count() for batch in task.train(epoch))
    return zip(range(1, last + 1), batches, strict=False)


def _flat(parameters: Sequence[Tensor]) -> np.ndarray:
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return torch.cat([part.flatten() for part in parts]).float().cpu().numpy()


def _gathered(gradient: np.ndarray, comm: Comm) -> np.ndarray:
    """Return the gradients of all ranks ``(P, n)`` on rank 0, elsewhere this rank's own ``(1, n)``; collective."""
    if comm.rank:
        comm.sendrecv(gradient, dest=0, source=None)
        return gradient[None]
    return np.stack([gradient, *(np.asarray(comm.sendrecv(gradient, None, rank)) for rank in range(1, comm.size))])


def _write(args: Namespace, steps: dict[int, np.ndarray], facts: dict[str, Any]) -> None:
    options = args.options
    about = {
        "program": args.program,
        "data": options.data,
        "tiny": options.tiny,
        "algorithm": facts["algorithm"],
        "batch_size": options.batch_size,
        "seed": options.seed,
        **facts,
        **provenance(),
    }
    args.save.parent.mkdir(parents=True, exist_ok=True)
    needed("sparse_mpi_bench.analysis.gradients", "a record of gradients").write(args.save, steps, about)
    ranks, size = next(iter(steps.values())).shape
    print(f"{args.save}: steps {', '.join(map(str, steps))} of {ranks} ranks, {size:,} elements each")


if __name__ == "__main__":
    arguments = parse()
    run(record, arguments)
