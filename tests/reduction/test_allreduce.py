"""The public functions: what they take, what they give back, and what they say to bad input, on every rank alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_mpi import ALGORITHMS, SparseAllreduce, sparse_allreduce
from sparse_mpi.algorithms.dense import Dense
from sparse_mpi.algorithms.oktopk import OkTopk
from sparse_mpi.select.estimate import DGC
from sparse_mpi.testing.steps import dense_of


def vector(rank: int, n: int = 200) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(n).astype(np.float32)


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_torch_in_torch_out(ranks, name, dtype):
    def body(comm):
        x = torch.from_numpy(vector(comm.rank)).to(dtype).reshape(20, 10).requires_grad_()
        reduction = sparse_allreduce(x, k=10, comm=comm, algorithm=name)
        reducer = SparseAllreduce([(20, 10)], k=10, comm=comm, algorithm=name)
        total = reducer.step(x)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        for result in (*reduction, total):
            dense = dense_of(result)
            assert isinstance(dense, torch.Tensor) and dense.dtype == wide and dense.shape == (200,)
        assert str(reducer.residual.dtype) == str(wide).removeprefix("torch.")
        as_numpy = sparse_allreduce(x.detach().to(wide).numpy(), k=10, comm=comm, algorithm=name)
        assert dense_of(as_numpy.total).tobytes() == dense_of(reduction.total).numpy().tobytes()

    ranks.run(body)


@pytest.mark.ranks(3)
def test_k_and_density_mean_the_same(ranks):
    def body(comm):
        made = [SparseAllreduce(200, comm=comm, **how).k for how in ({"k": 10}, {"density": 0.05}, {}, {"k": 999})]
        assert made == [10, 10, 2, 200]
        assert SparseAllreduce(3, density=1e-9, comm=comm).k == 1
        assert SparseAllreduce(7, k=np.int64(3), comm=comm, algorithm=OkTopk(period=5)).algorithm.period == 5
        assert SparseAllreduce(7, k=3, comm=comm, algorithm="oktopk", period=6).algorithm.period == 6
        assert SparseAllreduce(7, k=3, comm=comm, selector="dgc").algorithm == OkTopk(selector=DGC())
        assert SparseAllreduce(7, k=3, comm=comm, algorithm="dense", selector=None).algorithm == Dense()

    ranks.run(body)


BAD = {
    "both": ({"k": 1, "density": 0.1}, ValueError, "give k or density, not both"),
    "algorithm": ({"algorithm": "best"}, ValueError, "algorithm must be one of dense, .*topka, .*got 'best'"),
    "option": ({"algorithm": "oktopk", "perod": 3}, TypeError, "oktopk has no option perod; it has: selector, period"),
    "selector-type": ({"selector": DGC}, TypeError, "selector must be a name or an instance, .*names: exact, "),
    "selector-of-dense": ({"algorithm": "dense", "selector": "dgc"}, TypeError, "dense has no option selector"),
    "in_place": ({"in_place": True}, TypeError, "has no option in_place; .*in_place was removed in 0.4.0: leave"),
    "int-array": ({"x": np.arange(200)}, TypeError, "must be of dtype float32, .*got int64"),
    "masked": (
        {"x": np.ma.masked_array(np.ones(200), np.arange(200) < 9)},
        TypeError,
        "x must not be masked, got a Mas",
    ),
    "empty": ({"x": np.zeros(0)}, ValueError, "at least one element"),
}


@pytest.mark.parametrize("culprit", ["all", "last"])
@pytest.mark.parametrize("what", BAD)
@pytest.mark.under_mpi(3)
def test_bad_arguments_raise_on_every_rank(ranks, what, culprit):
    """Whether all ranks make the mistake or only one does."""
    arguments, error, message = BAD[what]

    def body(comm):
        mine = arguments if culprit == "all" or comm.rank == comm.size - 1 else {}
        expected = (error, message) if mine else (ValueError, f"(?s)rank.* {comm.size - 1}: {error.__name__}: .*")
        options = {key: value for key, value in mine.items() if key != "x"}
        with pytest.raises(expected[0], match=expected[1]):
            sparse_allreduce(mine.get("x", vector(comm.rank)), comm=comm, **options)
        if "x" in mine or (not mine and "x" in arguments):
            reducer = SparseAllreduce(200, comm=comm)
            with pytest.raises(expected[0] if what != "empty" or not mine else ValueError):
                reducer.step(mine.get("x", vector(comm.rank)))
        else:
            with pytest.raises(expected[0], match=expected[1]):
                SparseAllreduce(200, comm=comm, **options)
        assert comm.traffic.sent == 0, "data moved before the error"

    ranks.run(body)


DIFFERENT = {
    "k": lambda rank: {"k": 5 + (rank == 0)},
    "algorithm": lambda rank: {"k": 5, "algorithm": "topka" if rank == 0 else "gtopk"},
    "option": lambda rank: {"k": 5, "algorithm": "oktopk", "period": 3 + (rank == 0)},
    "selector": lambda rank: {"k": 5, "selector": "dgc" if rank == 0 else "exact"},
    "seed": lambda rank: {"k": 5, "selector": DGC(seed=rank)},
    "length": lambda rank: {"k": 5, "x": vector(0, 200 - (rank == 0))},
    "dtype": lambda rank: {"k": 5, "x": vector(0).astype(np.float64 if rank == 0 else np.float32)},
}


@pytest.mark.ranks(least=2)
@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.under_mpi(3)
def test_arguments_that_differ_raise_on_every_rank(ranks, what):
    def body(comm):
        mine = DIFFERENT[what](comm.rank)
        x = mine.pop("x", vector(comm.rank))
        differ = "(?s)all ranks must call with the same arguments, but.*rank 0: n=.*ranks? 1"
        with pytest.raises(ValueError, match=differ):
            sparse_allreduce(x, comm=comm, **mine)
        if what in ("k", "algorithm", "option", "selector", "seed"):
            with pytest.raises(ValueError, match="all ranks must call with the same arguments"):
                SparseAllreduce(200, comm=comm, **mine)
        assert comm.traffic.sent == 0

    ranks.run(body)


@pytest.mark.ranks(2)
def test_ranks_with_other_tensors_of_as_many_elements_do_not_start(ranks):
    def body(comm):
        with pytest.raises(ValueError, match="layout="):
            SparseAllreduce([(4, 6)] if comm.rank else [(6, 4)], k=5, comm=comm, algorithm="powersgd")

    ranks.run(body)
