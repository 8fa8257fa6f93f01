"""At density 1 every optimizer of torch trains as it does in plain data-parallel training, to rounding.

Among the gradients are zeros, layers that a rank or all ranks skip, and embeddings. What torch refuses is refused too.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.algorithms import ALGORITHMS

from .calls import MAKE, WHOLE, Call, Program
from .doors import DOORS
from .loops import mean, net, own, weights, wrapped
from .nets import NETS, Net
from .orders import FIRST, LOOPS, NONE, STEP, ZEROS
from .programs import Torch, run

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
    "SparseAdam": (optim.SparseAdam, {"lr": 0.05}),
    "Muon": (optim.Muon, {"lr": 0.05}),
    "Muon nesterov off": (optim.Muon, {"lr": 0.05, "nesterov": False, "weight_decay": 0.0}),
}
MODES = ("corrected", "global", "local")  # of momentum, which a name may have


class Zeros(Net):
    """Many gradients are zero: of a scalar without effect, and of weights of inputs that are."""

    def __init__(self, apart: torch.dtype | None = None) -> None:
        super().__init__()
        self.dead, self.dtype = nn.Parameter(torch.tensor(1.5)), apart
        self.apart = nn.Parameter(torch.tensor(1.5))  # moves, and changes nothing

    def to(self, dtype: torch.dtype) -> Zeros:
        super().to(dtype)
        self.apart.data = self.apart.data.to(self.dtype or dtype)
        return self

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        if self.more is not None:
            self.more.to(x.dtype)  # it comes in single precision
        return super().forward((x - 1).relu(), which) + 0 * self.dead + (self.apart - self.apart.detach())


PLAIN = (*LOOPS["plain"], *LOOPS["a layer that some leave out"], NONE, FIRST, STEP, NONE, WHOLE, STEP)
TOKENS = (NONE, Call("backward", 0, 0), STEP, NONE, WHOLE, STEP) * 3  # the other rank has some in each second step
HABITS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("plain", "groups"), {"calls": PLAIN}),
    "tied": {"calls": LOOPS["plain"], "net": "static"},  # a layer has two places
    "frozen": {"calls": LOOPS["frozen"]},
    "late group": {"calls": (*PLAIN, Call("add_group"), *PLAIN)},
    "mixed dtypes": {"calls": PLAIN, "net": "mixed"},
    "accumulation": {"calls": (NONE, WHOLE, WHOLE, STEP) * 6, "passes": 2},
    "closure": {"calls": (Call("closure", 0), Call("closure", 1)) * 4},
    "schedule": {"calls": (*LOOPS["plain"], Call("rate")) * 3},
    "sparse table": {"calls": (*LOOPS["plain"], *LOOPS["left out"]), "net": "tables"},
    "a rank without tokens": {"calls": TOKENS, "net": "tables"},
    "zeros for None": {"calls": tuple(ZEROS if call == NONE else call for call in PLAIN)},
}


def make(name: str, habit: str, parameters: Any) -> optim.Optimizer:
    """Make an optimizer of the parameters that it takes from the start."""
    kind, options = OPTIMIZERS[name]
    chosen = [p for p in parameters if p.numel() and (p.dim() == 2 or not name.startswith(("Muon", "SparseAdam")))]
    if name == "SparseAdam":
        chosen = chosen[:3]  # tables, where there are some
    if habit != "groups":
        return kind(chosen, **options)
    half = {"lr": options["lr"] / 2} | ({"weight_decay": 0.05} if "weight_decay" in options else {})
    return kind([{"params": chosen[::2]}, {"params": chosen[1::2], **half}], **options)


def check(
    patch: pytest.MonkeyPatch, name: str, habit: str, ranks: int = 2, cap: float | None = 1.5e-4, **how: Any
) -> None:
    patch.setitem(MAKE, name, partial(make, name, habit))
    patch.setitem(NETS, "zeros", Zeros)
    patch.setitem(NETS, "mixed", partial(Zeros, torch.bfloat16))
    mode = next((word for word in re.split("[ ,]+", name) if word in MODES), None)
    usual = {"net": "zeros", "dtype": "float64", "options": {"bucket_cap_mb": cap}} | HABITS[habit] | how
    program = Program(ranks=ranks, optimizer=name, momentum=mode, **usual)
    seen = World(ranks).run(lambda comm: run(lambda: DOORS["optimizer"](program, comm), program))
    for found, expected in zip(seen, Torch(program).run(), strict=True):
        assert bool(found.error) == bool(expected.error), (found.error, expected.error)
        for number, (ours, theirs) in enumerate(zip(found.weights, expected.weights, strict=not found.error)):
            said = f"{number}: {program.calls[number]}"
            np.testing.assert_allclose(ours[2:], theirs[2:], 1e-6, 1e-6, err_msg=said)
            rounded = 3e-2 if habit == "mixed dtypes" else 1e-6
            np.testing.assert_allclose(ours[:2], theirs[:2], rounded, rounded, err_msg=said)


@pytest.mark.thin(1, name=("SparseAdam",), habit=("sparse table", "a rank without tokens"))
@pytest.mark.parametrize("algorithm", ["dense", "topka"])
@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_that_of_torch(name, habit, algorithm, monkeypatch):
    """960 cases: with several buckets, and with one that leaves zeros out of its results."""
    check(monkeypatch, name, habit, algorithm=algorithm, **({} if algorithm == "dense" else {"cap": None}))


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", ["SGD nesterov, decay", "SGD corrected", "Adam", "Adamax"])
@pytest.mark.parametrize("algorithm", EXACT)
def test_it_is_with_every_algorithm(algorithm, name, monkeypatch):
    check(monkeypatch, name, "groups", 3, algorithm=algorithm)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("options", [{"lr": 0.1}, {"line_search_fn": "strong_wolfe"}], ids=str)
def test_each_call_of_a_closure_by_lbfgs_has_the_mean(ranks, options):
    kind = partial(optim.LBFGS, **{"max_iter": 3} | options)

    def trained(model, optimizer, loss):
        for number in range(4):

            def closure(number=number):
                optimizer.zero_grad()
                (value := loss(model, number)).backward()
                return value

            optimizer.step(closure)
        return weights(model)

    def body(comm):
        model = net().double()
        return trained(model, wrapped(model, comm, lambda p, lr: kind(p), density=1.0), own(comm.rank))

    model = net().double()
    alone = trained(model, kind(model.parameters()), mean(ranks.size))
    for found in ranks.run(body):
        np.testing.assert_allclose(found, alone, 1e-6, 1e-6)


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
