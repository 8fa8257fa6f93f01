"""What Horovod's own test of torch asks of an optimizer and of a broadcast, asked in words of our own.

Lists beside this file say of each test of others that it passes, or why not. horovod.json: the tests of torch in
Horovod 0.22.1, on two ranks under mpiexec through a shim of names that gives momentum="local". ddp.json: the tests of
DistributedDataParallel that torch 2.13 installs, on two ranks of gloo that take the CPU for a GPU, with the hook at
density 1 on every model, or in the place of the one that a test registers.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from sparse_mpi.optim import DistributedOptimizer, broadcast_optimizer_state, broadcast_parameters

from .loops import equal, net, own, train, weights

pytestmark = pytest.mark.ranks(1, 2)

OPTIMIZERS = [
    kind
    for kind in vars(torch.optim).values()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
]
# LBFGS steps by a closure alone, SparseAdam takes tables alone, Muon matrices alone
OPTIMIZERS = [kind for kind in OPTIMIZERS if kind.__name__ not in ("LBFGS", "SparseAdam", "Muon")]
every_optimizer = pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
# What the root has, and what the others have
OPTIONS = {
    "lr": (0.1, 0.2),
    "momentum": (0.8, 0.9),
    "weight_decay": (0.2, 0.1),
    "nesterov": (True, False),
    "betas": ((0.9, 0.999), (0.8, 0.9)),
    "etas": ((0.8, 2.4), (0.25, 1.75)),
    "step_sizes": ((1e-5, 100), (1e-7, 5)),
}


def made(kind, model, comm, root=True, momentum=None, names=tuple(OPTIONS)):
    taken = set(names) & set(inspect.signature(kind.__init__).parameters)
    # Before they reduce, ranks agree on the momentum that error feedback applies
    agreed = () if momentum == "local" else ("momentum", "betas")
    given = {name: OPTIONS[name][not (root or name in agreed)] for name in sorted(taken)}
    inner = kind(model.parameters(), **given)
    return DistributedOptimizer(inner, model.named_parameters(), comm=comm, momentum=momentum)


def state_of(optimizer):
    """All numbers of the state and the options, in one vector."""
    state, groups = optimizer.state_dict()["state"], optimizer.state_dict()["param_groups"]
    options = [value for group in groups for name, value in sorted(group.items()) if name in OPTIONS]
    kept = [value for key in sorted(state) for _, value in sorted(state[key].items()) if value is not None]
    return np.concatenate([torch.as_tensor(x).double().flatten().numpy() for x in (*kept, *options)])


@every_optimizer
@pytest.mark.parametrize(
    ("momentum", "names"), [(None, OPTIONS), (None, ["lr"]), ("local", OPTIONS)], ids=["all", "rate", "local"]
)
def test_a_checkpoint_of_the_root_is_everybodys_and_training_goes_on(ranks, kind, momentum, names):
    """The root loads what it has saved; the others have other parameters, another state and other options."""

    def run(comm):
        model = net(comm.rank)
        optimizer = made(kind, model, comm, comm.rank == 0, momentum, names)
        train(model, optimizer, own(comm.rank), range(2))
        if comm.rank == 0:
            saved = model.state_dict(), optimizer.state_dict()
            model = net(7)
            optimizer = made(kind, model, comm, True, momentum, names)
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        else:
            model = net(8)
            optimizer = made(kind, model, comm, False, momentum, names)
        before = weights(model), state_of(optimizer)
        broadcast_parameters(model.state_dict(), 0, comm)
        broadcast_optimizer_state(optimizer, 0, comm)
        after = weights(model), state_of(optimizer)
        return before, after, train(model, optimizer, own(comm.rank), range(2, 4))

    found = ranks.run(run)
    for part in range(2):
        assert equal([found[0][0][part], *(after[part] for _, after, _ in found)])
    assert equal([end for *_, end in found]) and np.isfinite(found[0][2]).all()


@pytest.mark.parametrize(("name", "tests", "least"), [("horovod", 71, 45), ("ddp", 91, 57)])
def test_what_others_test_passes_or_has_a_reason(name, tests, least):
    said = [*json.loads(Path(__file__).with_name(f"{name}.json").read_text()).values()]
    assert len(said) == tests and said.count("passes") >= least
    assert all(re.fullmatch(r"passes|[A-Z].{20,}[^.]", words) for words in said)
