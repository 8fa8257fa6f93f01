"""States of torch.distributed.checkpoint, flattened or not, lose nothing, whenever and in whatever mode they load."""

from __future__ import annotations

import copy
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from sparse_mpi.optim import DistributedOptimizer

from .loops import equal, net, own, train

pytestmark = pytest.mark.ranks(1, 3)
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
KINDS = {
    "nesterov": partial(SGD, nesterov=True),
    "decay": partial(SGD, weight_decay=0.1),
    "nesterov and decay": partial(SGD, nesterov=True, weight_decay=0.1),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "nadam": partial(torch.optim.NAdam, lr=0.01),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01),
}
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def made(comm, kind, seed=0, wrap=True, **options):
    model = net(seed)
    optimizer = KINDS[kind](model.parameters())
    return model, wrapped(comm, model, optimizer, **options) if wrap else optimizer


def wrapped(comm, model, optimizer, **options):
    return DistributedOptimizer(optimizer, model.named_parameters(), comm=comm, density=0.3, **options)


def load(model, optimizer, saved, flatten) -> None:
    weights, state = copy.deepcopy(saved)
    if flatten is None:
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
        return
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state, options=flatten)


@pytest.mark.parametrize("flatten", [FLAT, StateDictOptions()], ids=["flat", "nested"])
@pytest.mark.parametrize("cleared", [True, False], ids=["cleared", "gradients there"])
@pytest.mark.parametrize("when", ["before the wrap", "behind it"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_to_the_same_bits(ranks, kind, when, cleared, flatten):
    def body(comm):
        model, optimizer = made(comm, kind)
        train(model, optimizer, own(comm.rank), range(4))
        if cleared:
            optimizer.zero_grad()
        saved = copy.deepcopy(get_state_dict(model, optimizer, options=flatten))
        residuals = copy.deepcopy(optimizer.reduction.state_dict())
        again, other = made(comm, kind, seed=1, wrap=when == "behind it")
        load(again, other, saved, flatten)
        if when == "before the wrap":
            wrapped(comm, again, other)
        other.reduction.load_state_dict(residuals)
        return [train(*one, own(comm.rank), range(4, 9)) for one in ((model, optimizer), (again, other))]

    assert all(equal(ends) for ends in ranks.run(body))


MODES = {"second-moment": None, "arrival": "arrival", "local": "local", "torch": "torch"}
PAIRS = [*pairwise([*MODES, "second-moment"]), *pairwise([*reversed(MODES)]), ("local", "local")]


@pytest.mark.parametrize("flatten", [FLAT, None], ids=["flat", "plain"])
@pytest.mark.parametrize(("before", "after"), PAIRS)
@pytest.mark.parametrize("kind", ["nesterov", "adam", "adamw", "nadam", "rmsprop"])
def test_a_state_of_one_mode_goes_on_in_another(ranks, kind, before, after, flatten):
    """What one has and the other lacks begins anew, in the wrap or behind it; without one, ranks have one loss."""
    if "arrival" in (before, after) and not kind.startswith("adam"):
        return

    def body(comm):
        def mode(name):
            return {} if name == "torch" else {"momentum": MODES[name]}

        loss = own(0 if "torch" in (before, after) else comm.rank)
        model, optimizer = made(comm, kind, wrap=before != "torch", **mode(before))
        train(model, optimizer, loss, range(4))
        optimizer.zero_grad()
        saved = get_state_dict(model, optimizer, options=flatten)
        if flatten is None:
            saved = model.state_dict(), optimizer.state_dict()
        ends = []
        for wrap in (True, False):
            again, other = made(comm, kind, seed=1, wrap=wrap and after != "torch", **mode(after))
            load(again, other, saved, flatten)
            if not wrap and after != "torch":
                wrapped(comm, again, other, **mode(after))
            ends.append(train(again, other, loss, range(4, 9)))
        return ends

    results = ranks.run(body)
    assert all(equal(ends) and np.isfinite(ends[0]).all() for ends in zip(*results, strict=True))


def test_what_was_added_is_not_taken_for_another_step(ranks, caplog):
    def body(comm):
        model, optimizer = made(comm, "adamw")
        train(model, optimizer, own(comm.rank), range(2))
        early = copy.deepcopy(optimizer.reduction.state_dict())
        train(model, optimizer, own(comm.rank), range(2, 4))
        state = {
            key: {name: x for name, x in one.items() if name != "arrived"}
            for key, one in enumerate(optimizer.state.values())
        }
        again, other = made(comm, "adamw", wrap=False)
        other.load_state_dict(optimizer.state_dict() | {"state": copy.deepcopy(state)})
        wrapped(comm, again, other)
        other.reduction.load_state_dict(early)
        assert not any("arrived" in one for one in other.state.values())
        with pytest.raises(ValueError, match=r"state\['added'\] must be of this model's parameters, got 'none'"):
            other.reduction.load_state_dict(dict(early, added={"none": {}}) | {"form": {}})

    ranks.run(body)
    assert "begin anew" not in caplog.text
