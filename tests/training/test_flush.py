"""`DistributedOptimizer.flush` with optimizers whose moments it does not apply; `check_door` has its laws."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch

from .loops import own, train, weights, wrapped
from .loops import wide_net as net


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW], ids=lambda make: make.__name__)
def test_other_optimizers_take_a_step_of_theirs_without_decay(ranks, make):
    def body(comm):
        model = net()
        optimizer = wrapped(model, comm, partial(make, weight_decay=0.5), 0.01, momentum="local")
        train(model, optimizer, own(comm.rank), range(3))
        twin = net()
        twin.load_state_dict(model.state_dict())
        alone = make(twin.parameters(), 0.01, weight_decay=0.0)
        alone.load_state_dict(deepcopy(optimizer.state_dict()))
        alone.param_groups[0]["weight_decay"] = 0.0
        optimizer.flush(step=False)
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            theirs.grad = ours.grad.clone()
        optimizer.step()
        alone.step()
        assert np.array_equal(weights(model), weights(twin)) and optimizer.param_groups[0]["weight_decay"] == 0.5

    ranks.run(body)
