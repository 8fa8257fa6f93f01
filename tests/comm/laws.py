"""Laws of transports that several test files hold for theirs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce
from sparse_mpi.arrays import to_host
from sparse_mpi.testing import check_transport
from sparse_mpi.testing.checking_transports import TALKS


def assert_as_in_a_world(ranks, wrap=lambda comm: comm, seeds=TALKS.seeds) -> None:
    """Every call, on parts and duplicates too, returns and counts what it does in a `World`."""
    wrapped = SimpleNamespace(size=ranks.size, run=lambda fn: ranks.run(lambda comm: fn(wrap(comm))))
    check_transport(lambda _: wrapped, replace(TALKS, ranks=(ranks.size,), examples=0, seeds=seeds))


def stepped(comm, algorithm, layout, k, steps, place=lambda x: x) -> list[np.ndarray]:
    """Totals of so many steps, the last of them dense: each ``(n,)`` and on the host."""
    reducer, totals = SparseAllreduce(layout, k=k, comm=comm, algorithm=algorithm), []
    for step in range(steps):
        drawn = np.random.default_rng([comm.rank, step]).standard_normal(layout.size).astype(np.float32)
        total = reducer.step(place(drawn), dense=step == steps - 1)
        totals.append(to_host(total.to_dense() if hasattr(total, "to_dense") else total))
    return totals


def assert_reduced_to_its_ends(ranks, dtype: str, times: int = 1) -> None:
    """Sums wrap around, and maxima are of what is large without a sign; all numbers come so many times."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        own = [np.array([0.5, -1.5, np.finfo(kind).max / 64], kind) * rank for rank in range(ranks.size)]
    else:
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        own = [np.array([high, low, rank, high - rank, low + rank], kind) for rank in range(ranks.size)]
    own = [np.tile(numbers, times) for numbers in own]
    for total, largest in ranks.run(lambda comm: [comm.allreduce(own[comm.rank], op) for op in ("sum", "max")]):
        assert total.dtype == largest.dtype == kind
        np.testing.assert_array_equal(total, np.sum(own, axis=0, dtype=kind))
        np.testing.assert_array_equal(largest, np.max(own, axis=0))


def assert_rows_of_another_size_are_refused(ranks) -> None:
    """On two ranks, whose rows have one number and two."""

    def body(comm):
        send, peer = np.zeros((2, 1 + comm.rank)), 1 - comm.rank
        with pytest.raises(TypeError, match=rf"rows of {8 + 8 * comm.rank} bytes on rank {peer} too, got"):
            comm.sendrecv(send, peer, peer)
        with pytest.raises(TypeError, match=rf"rows of {8 + 8 * comm.rank} bytes on rank {peer} too, got"):
            comm.alltoallv(send, [1, 1])

    ranks.run(body)
