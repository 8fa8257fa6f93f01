"""At density 1 every optimizer of torch trains as it does in plain data-parallel training, to rounding.

Among the gradients are zeros, layers that a rank or all ranks skip, and embeddings. What torch refuses is refused too.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn, optim

from sparse_mpi import SparseAllreduce
from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.optim import DistributedOptimizer

EXACT = [name for name in ALGORITHMS if name not in ("dense-bf16", "powersgd", "acpsgd")]  # rounded, or of low rank
OPTIMIZERS = {
    "SGD": (optim.SGD, {"lr": 0.1}),
    "SGD decay": (optim.SGD, {"lr": 0.1, "weight_decay": 0.02}),
    "SGD maximize": (optim.SGD, {"lr": 0.01, "maximize": True}),
    "SGD momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "SGD momentum, decay": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.02}),
    "SGD momentum, maximize": (optim.SGD, {"lr": 0.01, "momentum": 0.7, "weight_decay": 0.02, "maximize": True}),
    "SGD dampening": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    "SGD nesterov": (optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "SGD nesterov, decay": (optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.02}),
    "SGD corrected": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.02}),
    "SGD corrected, nesterov": (optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "SGD global, decay": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.02}),
    "SGD global, nesterov": (optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "SGD local": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.02}),
    "Adam": (optim.Adam, {"lr": 0.05}),
    "Adam decay": (optim.Adam, {"lr": 0.05, "weight_decay": 0.02}),
    "Adam decoupled": (optim.Adam, {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "Adam betas": (optim.Adam, {"lr": 0.05, "betas": (0.5, 0.9), "eps": 1e-4}),
    "Adam amsgrad": (optim.Adam, {"lr": 0.05, "amsgrad": True}),
    "Adam maximize": (optim.Adam, {"lr": 0.01, "maximize": True, "weight_decay": 0.02}),
    "Adam local": (optim.Adam, {"lr": 0.05}),
    "AdamW": (optim.AdamW, {"lr": 0.05}),
    "AdamW no beta1": (optim.AdamW, {"lr": 0.05, "betas": (0.0, 0.99), "weight_decay": 0.1}),
    "AdamW amsgrad": (optim.AdamW, {"lr": 0.05, "amsgrad": True}),
    "Adamax": (optim.Adamax, {"lr": 0.05, "weight_decay": 0.02}),
    "NAdam": (optim.NAdam, {"lr": 0.05}),
    "NAdam decoupled": (optim.NAdam, {"lr": 0.05, "weight_decay": 0.02, "decoupled_weight_decay": True}),
    "RAdam": (optim.RAdam, {"lr": 0.05, "weight_decay": 0.02}),
    "RMSprop": (optim.RMSprop, {"lr": 0.02}),
    "RMSprop momentum": (optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.02}),
    "RMSprop centered": (optim.RMSprop, {"lr": 0.01, "centered": True}),
    "Rprop": (optim.Rprop, {"lr": 0.02}),
    "Adagrad": (optim.Adagrad, {"lr": 0.1}),
    "Adagrad lr_decay": (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1}),
    "Adadelta": (optim.Adadelta, {"lr": 1.0, "weight_decay": 0.02}),
    "ASGD": (optim.ASGD, {"lr": 0.1, "lambd": 1e-2, "weight_decay": 0.02}),
    "Adafactor": (optim.Adafactor, {"lr": 0.05}),
    "LBFGS": (optim.LBFGS, {"lr": 0.1, "max_iter": 3}),
    "LBFGS strong_wolfe": (optim.LBFGS, {"lr": 1.0, "max_iter": 3, "line_search_fn": "strong_wolfe"}),
    "SparseAdam": (optim.SparseAdam, {"lr": 0.05}),
    "Muon": (optim.Muon, {"lr": 0.05}),
    "Muon nesterov off": (optim.Muon, {"lr": 0.05, "nesterov": False, "weight_decay": 0.0}),
}
MODES = ("corrected", "global", "local")  # of momentum, which a name may have
HABITS = [
    "plain", "groups", "tied", "frozen", "late group", "mixed dtypes", "accumulation", "closure", "schedule",
    "sparse table", "zeros for None",
]  # fmt: skip


class Net(nn.Module):
    """Weights some of whose gradients are zero, and layers that are not used in every step or on every rank."""

    def __init__(self, name: str, habit: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        dtype = torch.float32 if habit == "mixed dtypes" else torch.float64
        sparse, self.mixed = habit == "sparse table" or name == "SparseAdam", habit == "mixed dtypes"
        self.table = nn.Embedding(6, 3, sparse=sparse, dtype=torch.float64)
        self.used = nn.Parameter(torch.randn(4, 3, dtype=dtype))
        self.sometimes = nn.Parameter(torch.randn(4, 3, dtype=dtype))
        self.bias = nn.Parameter(torch.randn(3).to(torch.bfloat16 if self.mixed else dtype))
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=dtype))
        self.dead = nn.Parameter(torch.randn(3, dtype=dtype))
        self.again = self.used if habit == "tied" else None
        self.head = nn.Parameter(torch.randn(3, 3, dtype=dtype))
        self.late = habit == "late group"

    def loss(self, step: int, rank: int, head: bool) -> torch.Tensor:
        """Return the loss of a rank in a step; all ranks, the last alone, or none have a gradient of ``sometimes``."""
        made = torch.Generator().manual_seed(97 * step + rank)
        x = torch.randn(2, 4, generator=made).to(self.used)
        x[:, (step + rank) % 4] = x[:, step % 4] = 0
        out = x @ self.used * self.scale + self.dead * 0 + (0 if self.mixed else self.bias)
        if step > 2 and step % 4 in (0, 1):
            out = out + (x @ self.sometimes if step % 4 == 0 or rank else 0)
        if step % 5:
            out = out + self.table(torch.tensor([step % 6, (step + 2 * rank) % 3])).to(x)
        if self.again is not None:
            out = out + x.flip(1) @ self.again
        loss = (out @ self.head if head else out).tanh().pow(2).mean()
        return (
            loss + (self.bias.float() - x.mean()).pow(2).mean() if self.mixed else loss
        )  # what bfloat16 rounds stays apart

    def trained(self, name: str) -> list[nn.Parameter]:
        """Return the parameters that an optimizer takes from the start."""
        if name == "SparseAdam":
            return [self.table.weight]
        kept = [p for p in self.parameters() if p is not self.head or not self.late]
        return [p for p in kept if p.dim() == 2] if name.startswith("Muon") else kept


def train(name: str, habit: str, steps: int, distribute, ranks: list[int], total: int) -> dict[str, np.ndarray] | str:
    """Return the trained weights, or the type of the error that torch or the library has raised."""
    model = Net(name, habit)
    kind, options = OPTIMIZERS[name]
    parameters = model.trained(name)
    if habit == "groups":
        half = {"lr": options["lr"] / 2} | ({"weight_decay": 0.05} if "weight_decay" in options else {})
        parameters = [{"params": parameters[::2]}, {"params": parameters[1::2], **half}]
    passes = 2 if habit == "accumulation" else 1
    try:
        optimizer = distribute(kind(parameters, **options), passes)
        schedule = optim.lr_scheduler.StepLR(optimizer, 4, 0.7) if habit == "schedule" else None
        for step in range(steps):
            head = habit != "late group" or step >= 6
            if habit == "late group" and step == 6 and name != "SparseAdam":
                optimizer.add_param_group({"params": [model.head], "lr": options["lr"] / 2})
            if habit == "frozen":
                model.used.requires_grad_(not 5 <= step < 10)
                model.sometimes.requires_grad_(step < 9)

            def closure(step=step, head=head):
                optimizer.zero_grad(set_to_none=habit != "zeros for None")
                losses = [model.loss(step + 50 * part, rank, head) for part in range(passes) for rank in ranks]
                if len(ranks) == 1:
                    for loss in losses:
                        loss.backward()
                else:
                    mean_backward([p for group in optimizer.param_groups for p in group["params"]], losses, total)
                return sum(loss.item() for loss in losses) / len(ranks)

            if habit == "closure" or name.startswith("LBFGS"):
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
            if schedule is not None:
                schedule.step()
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        return type(error).__name__
    return {name: p.detach().double().numpy() for name, p in model.named_parameters()}


def mean_backward(parameters: list[torch.Tensor], losses: list[torch.Tensor], total: int) -> None:
    """Add the mean of the ranks' gradients of ``losses``, which are in rank order, pass by pass, to ``.grad``."""
    wanted = [p for p in parameters if p.requires_grad]
    each = [torch.autograd.grad(loss, wanted, allow_unused=True) for loss in losses]
    for parameter, *gradients in zip(wanted, *each, strict=True):
        if any(gradient is not None for gradient in gradients):
            wide = torch.promote_types(parameter.dtype, torch.float32)
            by_rank = []
            for rank in range(total):
                own = [gradient for gradient in gradients[rank::total] if gradient is not None]
                by_rank += [sum(own[1:], own[0]).to(wide)] if own else []
            mean = (sum(by_rank[1:], by_rank[0]) / total).to(parameter.dtype)
            parameter.grad = mean if parameter.grad is None else parameter.grad + mean


def check(ranks, name: str, habit: str, steps: int = 12, **options) -> None:
    def body(comm):
        def distribute(plain, passes):
            mode = next((word for word in re.split("[ ,]+", name) if word in MODES), None)
            more = {"momentum": mode, "backward_passes_per_step": passes}
            return DistributedOptimizer(plain, comm=comm, density=1.0, **more | options)

        return train(name, habit, steps, distribute, [comm.rank], comm.size)

    expected = train(name, habit, steps, lambda plain, passes: plain, list(range(ranks.size)), ranks.size)
    for trained in ranks.run(body):
        if isinstance(expected, str) or isinstance(trained, str):
            assert isinstance(expected, str) and isinstance(trained, str), (expected, trained)
            continue
        for part, weights in expected.items():
            tolerance = 1e-6 if habit != "mixed dtypes" else 3e-2 if part == "bias" else 1e-4
            np.testing.assert_allclose(trained[part], weights, tolerance, tolerance, err_msg=part)


@pytest.mark.ranks(2)
@pytest.mark.thin(1)
@pytest.mark.parametrize("algorithm", ["dense", "topka"])
@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_that_of_torch(ranks, name, habit, algorithm):
    """924 cases: with several buckets, and with one that leaves zeros out of its results."""
    check(ranks, name, habit, algorithm=algorithm, bucket_cap_mb=1e-4 if algorithm == "dense" else None)


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("algorithm", EXACT)
def test_nothing_is_owed(ranks, algorithm):
    """Whoever has zeros where, so that all entries have arrived, also those that are not in the result."""

    def body(comm):
        reducer = SparseAllreduce([(6, 8), (12,)], density=1.0, comm=comm, algorithm=algorithm)
        for step in range(20):
            made = np.random.default_rng([step, comm.rank])
            gradient = (
                made.standard_normal(60) * 10.0 ** -made.integers(8) * (made.random(60) < made.choice([0, 0.3, 1]))
            )
            reducer.step(gradient if step else np.arange(1.0, 61))
            assert not reducer.residual.any(), step

    ranks.run(body)


@pytest.mark.ranks(3)
@pytest.mark.thin(1)
@pytest.mark.parametrize("name", ["SGD nesterov, decay", "SGD corrected", "Adam", "Adamax"])
@pytest.mark.parametrize("algorithm", EXACT)
def test_it_is_with_every_algorithm(ranks, algorithm, name):
    check(ranks, name, "groups", algorithm=algorithm)
