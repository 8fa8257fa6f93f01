"""What every feedback rule must do beside obeying the laws, whatever it remembers: see also `test_memories`."""

from __future__ import annotations

import pytest

from sparse_mpi import SparseAllreduce
from sparse_mpi.comm import NullComm
from sparse_mpi.feedback.base import whole_state
from sparse_mpi.testing import Trials, check_feedback

from ..gradients import gradient
from .rules import KINDS


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.thin(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ["random", "one-rank-zero", "ties", "layers", "k=1", "n<P"])
def test_all_laws(ranks, kind, case):
    check_feedback(KINDS[kind], Trials((ranks,), (case, "nonfinite"), examples=0))


def test_a_flush_leaves_momentum_as_it_is():
    reducer = SparseAllreduce(200, k=12, comm=NullComm(), feedback="dgc")
    for step in range(3):
        reducer.step(gradient(0, step, 200))
    before = whole_state(reducer.feedback)["velocity"].tobytes()
    reducer.flush()
    assert whole_state(reducer.feedback)["velocity"].tobytes() == before
