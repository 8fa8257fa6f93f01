"""A training step takes as many operations of torch's for many parameters as for a few."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sparse_mpi.comm import NullComm
from sparse_mpi.optim import DistributedOptimizer

STEPS, SIZE = 6, 1000


class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        vars(self).setdefault("count", Counter())[function] += 1
        return function(*arguments, **options or {})


def operations(tensors, make, **options):
    """Those of the last step, without those of its backward pass."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(SIZE)) for _ in range(tensors)]
    plain = [torch.nn.Parameter(torch.randn(SIZE)) for _ in range(tensors)]
    optimizer = DistributedOptimizer(make(parameters), comm=NullComm(), **options)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for parameter in plain:
            parameter.grad = None
        losses = [sum((parameter * torch.randn(SIZE)).sum() for parameter in some) for some in (plain, parameters)]
        with Operations() as backward:
            losses[0].backward()
        with Operations() as step:
            losses[1].backward()
            optimizer.step()
    step.count.subtract(backward.count)
    return +step.count


SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True)  # its own step too
KINDS = {
    "AdamW": (torch.optim.AdamW, {}),
    "Adam by arrival": (partial(torch.optim.Adam, weight_decay=0.1), {"momentum": "arrival", "algorithm": "oktopk"}),
    "NAdam": (torch.optim.NAdam, {}),
    "RMSprop": (torch.optim.RMSprop, {}),
    "SGD": (SGD, {"algorithm": "oktopk"}),
    "Nesterov": (partial(SGD, nesterov=True), {}),
    "clipped": (torch.optim.AdamW, {"clip_norm": 1.0, "overlap": False}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_takes_no_more_operations_for_more_tensors(kind):
    make, options = KINDS[kind]
    assert operations(40, make, **options) == operations(4, make, **options)
