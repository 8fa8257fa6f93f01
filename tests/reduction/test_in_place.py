"""The residual in the gradient's own buffer: the same bits as apart from it, and no buffer lost unnoticed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_mpi import ALGORITHMS, SparseAllreduce
from sparse_mpi.comm import NullComm

from ..algorithms.conformance import dense_of, same_bytes
from ..gradients import gradient

N, K = 200, 10

few_ranks = pytest.mark.ranks(1, 3)
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


@few_ranks
@every_algorithm
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_in_place_gives_the_same_bits(ranks, name, library):
    def body(comm):
        apart = SparseAllreduce(N, k=K, comm=comm, algorithm=name)
        adopting = SparseAllreduce(N, k=K, comm=comm, algorithm=name, in_place=True)
        buffer = np.zeros(N, np.float32) if library == "numpy" else torch.zeros(20, 10)
        flat = np.asarray(buffer).reshape(-1)
        for step in range(6):
            flat += gradient(comm.rank, step, N)
            expected = apart.step(gradient(comm.rank, step, N))
            total = adopting.step(buffer, check=step % 2 == 0)
            assert dense_of(expected).tobytes() == np.asarray(dense_of(total)).tobytes()
            assert flat.tobytes() == apart.residual.tobytes() == adopting.residual.tobytes()
            assert np.shares_memory(adopting.residual, flat)
            if step == 2:  # a state of either way goes into the other
                apart, saved = SparseAllreduce(N, k=K, comm=comm, algorithm=name), apart.state_dict()
                apart.load_state_dict(adopting.state_dict())
                flat += 1
                adopting.load_state_dict(saved)

    ranks.run(body)


@few_ranks
@every_algorithm
def test_in_place_resumes_before_its_first_step(ranks, name):
    def body(comm):
        straight, resumed = (SparseAllreduce(N, k=K, comm=comm, algorithm=name, in_place=True) for _ in range(2))
        buffer = gradient(comm.rank, 0, N)
        straight.step(buffer)
        resumed.load_state_dict(straight.state_dict())
        assert resumed.residual.tobytes() == buffer.tobytes()
        fresh = gradient(comm.rank, 1, N)
        buffer += fresh
        assert same_bytes(straight.step(buffer), resumed.step(fresh)) and buffer.tobytes() == fresh.tobytes()

    ranks.run(body)


IN_PLACE = {
    "float16": (lambda: np.zeros(N, np.float16), TypeError, "must be float32 or float64 to be reduced in place"),
    "bfloat16": (lambda: torch.zeros(N, dtype=torch.bfloat16), TypeError, "got bfloat16; accumulate into a float32"),
    "strided": (lambda: np.zeros(2 * N, np.float32)[::2], ValueError, "must be contiguous"),
    "transposed": (lambda: torch.zeros(10, 20).T, ValueError, "must be contiguous"),
    "another": (lambda: np.zeros(N, np.float32), ValueError, r"buffer of the first step.*set_to_none=True"),
    "wider": (lambda: np.zeros(N), ValueError, "must be the float32 buffer of the first step"),
}


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("what", IN_PLACE)
@pytest.mark.under_mpi(3)
def test_buffers_that_cannot_be_adopted_raise_on_every_rank(ranks, what):
    make, error, message = IN_PLACE[what]

    def body(comm):
        reducer, buffer = SparseAllreduce(N, k=K, comm=comm, in_place=True), gradient(comm.rank, 0, N)
        reducer.step(buffer)
        mine = comm.rank == comm.size - 1
        expected = (error, message) if mine else (ValueError, f"rank {comm.size - 1}: {error.__name__}")
        with pytest.raises(expected[0], match=expected[1]):
            reducer.step(make() if mine else buffer)
        reducer.step(buffer, check=True)
        assert reducer.report.selected == K, "the reducer is still good"

    ranks.run(body)


def test_read_only_buffer_is_refused():
    buffer = gradient(0, 0, N)
    buffer.flags.writeable = False
    with pytest.raises(ValueError, match="must be writable"):
        SparseAllreduce(N, k=K, comm=NullComm(), in_place=True).step(buffer)
