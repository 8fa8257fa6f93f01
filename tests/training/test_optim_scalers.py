"""`DistributedOptimizer` with states of Adam of any mode."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch

from sparse_mpi.optim import DistributedOptimizer

from .loops import equal, own, train
from .loops import wide_net as net

pytestmark = pytest.mark.ranks(1, 3)


MODES = {"second-moment": None, "arrival": "arrival", "local": "local", "torch": "torch"}
ADAMS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RMSprop)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("before", "after"), [*pairwise([*MODES, "second-moment"]), *pairwise([*reversed(MODES)])])
@pytest.mark.parametrize("kind", ADAMS, ids=lambda kind: kind.__name__)
def test_the_state_of_each_mode_of_adam_loads_into_every_other(ranks, kind, before, after):
    if "arrival" in (before, after) and kind not in ADAMS[:2]:
        pytest.skip("which goes by no arrival")

    def body(comm):
        def made(mode):
            model = net()
            plain = kind(model.parameters(), lr=0.01)
            if mode == "torch":
                return model, plain
            return model, DistributedOptimizer(plain, comm=comm, momentum=MODES[mode], density=0.1)

        model, optimizer = made(before)
        loss = own(0) if "torch" in (before, after) else own(comm.rank)
        train(model, optimizer, loss, range(2))
        other, again = made(after)
        other.load_state_dict(model.state_dict())
        again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        return train(other, again, loss, range(2, 4))

    results = ranks.run(body)
    assert equal(results) and np.isfinite(results[0]).all()
