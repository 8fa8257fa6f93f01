"""At density 1 every optimizer of torch trains as it does in plain data-parallel training, to rounding.

Among the gradients are zeros, layers that a rank or all ranks skip, and embeddings. What torch refuses is refused too.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn, optim

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.optim import DistributedOptimizer

STEPS = 20
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
MODES = {
    "SGD corrected": "corrected",
    "SGD corrected, nesterov": "corrected",
    "SGD local": "local",
    "Adam local": "local",
}
HABITS = [
    "plain", "groups", "tied", "frozen", "late group", "mixed dtypes", "accumulation", "closure", "schedule",
    "sparse table", "zeros for None",
]  # fmt: skip


class Net(nn.Module):
    """Weights some of whose gradients are zero, and layers that are not used in every step or on every rank."""

    def __init__(self, name: str, habit: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        sparse, mixed = habit == "sparse table" or name == "SparseAdam", habit == "mixed dtypes"
        self.table = nn.Embedding(6, 3, sparse=sparse, dtype=torch.float64 if mixed else torch.float32)
        self.used = nn.Parameter(torch.randn(4, 3))
        self.sometimes = nn.Parameter(torch.randn(4, 3))
        self.bias = nn.Parameter(torch.randn(3).to(torch.bfloat16 if mixed else torch.float32))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.dead = nn.Parameter(torch.randn(3))
        self.again = self.used if habit == "tied" else None
        self.head = nn.Parameter(torch.randn(3, 3))
        self.late = habit == "late group"

    def loss(self, step: int, rank: int, head: bool) -> torch.Tensor:
        """Return the loss of a rank in a step; all ranks, the last alone, or none have a gradient of ``sometimes``."""
        made = torch.Generator().manual_seed(97 * step + rank)
        x = torch.randn(2, 4, generator=made)
        x[:, (step + rank) % 4] = x[:, step % 4] = 0
        out = x @ self.used * self.scale + self.bias.float() + self.dead * 0
        if step > 2 and step % 4 in (0, 1):
            out = out + (x @ self.sometimes if step % 4 == 0 or rank else 0)
        if step % 5:
            out = out + self.table(torch.tensor([step % 6, (step + 2 * rank) % 3])).float()
        if self.again is not None:
            out = out + x.flip(1) @ self.again
        return (out @ self.head if head else out).tanh().pow(2).mean()

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
                return sum(loss.detach() for loss in losses) / len(ranks)

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


def check(ranks, name: str, habit: str, steps: int, **options) -> None:
    def body(comm):
        def distribute(plain, passes):
            more = {"momentum": MODES.get(name), "backward_passes_per_step": passes, "bucket_cap_mb": 1e-4}
            return DistributedOptimizer(plain, comm=comm, density=1.0, **more | options)

        return train(name, habit, steps, distribute, [comm.rank], comm.size)

    expected = train(name, habit, steps, lambda plain, passes: plain, list(range(ranks.size)), ranks.size)
    for trained in ranks.run(body):
        if isinstance(expected, str) or isinstance(trained, str):
            assert trained == expected
            continue
        for part, weights in expected.items():
            close = (
                {"rtol": 2e-2, "atol": 3e-2}
                if part == "bias" and habit == "mixed dtypes"
                else {"rtol": 2e-4, "atol": 2e-5}
            )
            np.testing.assert_allclose(trained[part], weights, err_msg=part, **close)


@pytest.mark.ranks(2)
@pytest.mark.thin(1)
@pytest.mark.parametrize("algorithm", ["dense", "elect"])
@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_that_of_torch(ranks, name, habit, algorithm):
    check(ranks, name, habit, STEPS, algorithm=algorithm)
