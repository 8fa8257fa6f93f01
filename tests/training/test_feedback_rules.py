"""Every feedback rule in training: resumed, scaled, on other ranks; `check_feedback` has dense steps before that."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import World
from sparse_mpi.feedback.base import whole_state

from ..reduction.rules import KINDS, RULES
from . import check_door
from .loops import own, train, wrapped
from .loops import wide_net as net

every_rule = pytest.mark.parametrize("kind", RULES)


LAWS = (check_door.a_resumed_run_goes_on_to_the_same_bits, check_door.a_loss_scale_is_in_no_result)


@pytest.mark.thin(1)
@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("law", LAWS)
@every_rule
def test_laws_of_doors(ranks, kind, law, tmp_path):
    """Where the rule has no momentum the optimizer has its own, in its state."""
    how = {"optimizer": "sgd" if RULES[kind].traits.momentum else "momentum", "momentum": "local"}
    how["options"] = {"feedback": RULES[kind]}
    ranks.run(lambda comm: law(check_door.Ground("optimizer", comm, tmp_path), **how))


@every_rule
@pytest.mark.parametrize("op", ["average", "sum"])
def test_other_ranks_go_on_where_the_old_ones_stopped(kind, op):
    """The mean gradient that is owed, or gone along, is what it was, or the sum."""
    old, new = (4, 2) if op == "average" else (1, 1)

    def saved(comm):
        model = net()
        optimizer = wrapped(model, comm, feedback=KINDS[kind], bucket_cap_mb=None, op=op)
        train(model, optimizer, own(comm.rank), range(4))
        return optimizer.reduction.state_dict()

    states = World(4).run(saved)

    def body(comm):
        model = net()
        optimizer = wrapped(model, comm, feedback=KINDS[kind], bucket_cap_mb=None, op=op)
        optimizer.reduction.take_over(states[comm.rank :: comm.size], 4)
        rule = optimizer.reduction.buckets[0].reducer.feedback
        taken = {name: array.copy() for name, array in whole_state(rule).items()}
        train(model, optimizer, own(comm.rank), range(4, 6))
        return taken, list(rule.state()), list(rule.state(replicated=True))

    results = World(2).run(body)
    for name in results[0][1]:
        expected = sum(state["vectors"][0]["reducer"][name] for state in states) / old
        np.testing.assert_allclose(sum(taken[name] for taken, *_ in results) / new, expected, rtol=1e-4, atol=1e-6)
    for name in results[0][2]:
        for taken, *_ in results:
            np.testing.assert_allclose(taken[name] / new, states[0]["vectors"][0]["reducer"][name] / old, rtol=1e-5)
