"""Checkpoints of `elect` with a lag, which may have elected the entries of the next step when a run stops."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.algorithms.elect import Elect
from sparse_mpi.checkpoint import load, save
from sparse_mpi.wire import BitPacked

from .test_checkpoint import SHAPES, K, vector

ahead = pytest.mark.parametrize("ahead", [False, True], ids=["in-step", "ahead"])


def lagging(comm) -> SparseAllreduce:
    return SparseAllreduce(SHAPES, k=K, comm=comm, algorithm=Elect(wire=BitPacked(), lag=1))


def trained(comm, ahead: bool) -> SparseAllreduce:
    reducer = lagging(comm)
    for step in range(4):
        reducer.step(vector(comm.rank, step))
        if ahead:
            reducer.prepare()
    return reducer


@ahead
def test_on_another_number_of_ranks_the_election_is_held_again(ahead, tmp_path):
    def write(comm):
        reducer = trained(comm, ahead)
        save(tmp_path, 4, {}, b"", reducer.state_dict(), comm)
        return reducer.residual.copy()

    def go_on(comm):
        found, resumed = load(tmp_path, comm), lagging(comm)
        resumed.take_over(found.states, found.ranks)
        owed = resumed.residual.copy()
        total = resumed.step(np.zeros(owed.shape, np.float32), check=True)
        return owed, total.nnz

    before = sum(World(3).run(write))
    after = World(2).run(go_on)
    np.testing.assert_array_equal(sum(owed for owed, _ in after), before)
    assert all(nnz > 0 for _, nnz in after)
