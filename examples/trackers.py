"""Reports in a tracker: mpiexec -n 2 python trackers.py tensorboard FOLDER."""

import sys

import torch
from mpi4py import MPI
from torch import nn

from sparse_mpi.optim import DistributedOptimizer


def tensorboard(folder):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder)
    return lambda numbers, step: [
        writer.add_scalar(*item, step) for item in numbers.items()
    ]


def wandb(folder):
    import wandb

    run = wandb.init(project="sparse", mode="offline", dir=folder)
    return lambda numbers, step: run.log(numbers, step=step)


def mlflow(folder):
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")  # or a server's address
    return lambda numbers, step: mlflow.log_metrics(numbers, step=step)


model = nn.Linear(1000, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = DistributedOptimizer(optimizer, model.named_parameters(), density=0.05)
trackers = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}
# One rank writes, as the numbers of ranks hardly differ
log = trackers[sys.argv[1]](sys.argv[2]) if MPI.COMM_WORLD.rank == 0 else None
for step in range(10):
    optimizer.zero_grad()
    model(torch.randn(8, 1000)).square().mean().backward()
    optimizer.step()
    if log is not None:
        numbers = optimizer.reduction.report.scalars()
        log({f"sparse/{name}": value for name, value in numbers.items()}, step)
print(f"sent {numbers['mb_sent']:.4f} MB in the last step" if log else "another rank")
