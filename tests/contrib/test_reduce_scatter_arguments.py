"""What `SparseReduceScatter` refuses: one clear error on all ranks, before any data moves."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.algorithms import OkTopk
from sparse_mpi.algorithms.hybrid import Fused
from sparse_mpi.contrib import SparseReduceScatter
from sparse_mpi.contrib.scatter_algorithms import OkTopkScatter

BAD = {
    "sum": ({"counts": [100, 50, 49]}, ValueError, "counts must be 3 numbers.*add up to the 200 el.*got 3 that.*199"),
    "length": ({"counts": [100, 100]}, ValueError, "counts must be 3 numbers.*got 2 that add up to 200"),
    "negative": ({"counts": [150, 100, -50]}, ValueError, "counts must be at least 0 entries.*got -50"),
    "fraction": ({"counts": [100, 50.5, 49.5]}, TypeError, "counts must be a whole number.*got 50.5"),
    "number": ({"counts": 200}, TypeError, "counts must be a sequence of a number for each rank, got 200"),
    "none": ({"counts": []}, TypeError, r"counts must be a sequence of a number for each rank, got \[\]"),
    "whole": ({"algorithm": "topka"}, ValueError, "algorithm must be one of dense, oktopk, elect, got 'topka'"),
    "auto": ({"algorithm": "auto"}, ValueError, "algorithm must be one of dense, oktopk, elect, got 'auto'"),
    "instance": (
        {"algorithm": OkTopk()},
        ValueError,
        "algorithm must leave each rank its part of the sum, as dense, o",
    ),
    "option": ({"trigger": 2}, TypeError, "oktopk has no option trigger; it has: counts, selector, wire, radix"),
    "value": ({"radix": 1}, ValueError, "radix must be at least 2"),
    "votes": ({"algorithm": "elect", "votes": 2}, ValueError, r"votes must be in \(0, 1\]"),
    "both": ({"k": 1, "density": 0.1}, ValueError, "give k or density, not both"),
    "nonfinite": ({"nonfinite": "drop"}, ValueError, "nonfinite must be one of keep, raise"),
    "feedback": ({"feedback": "gmc"}, ValueError, "feedback must do without the whole sum"),
}


@pytest.mark.parametrize("culprit", ["all", "last"])
@pytest.mark.parametrize("what", BAD)
@pytest.mark.ranks(3)
def test_bad_arguments_raise_on_every_rank_before_any_data_moves(ranks, what, culprit):
    arguments, error, message = BAD[what]

    def body(comm):
        mine = arguments if culprit == "all" or comm.rank == 2 else {}
        kind, text = (error, message) if mine else (ValueError, f"(?s)rank.* 2: {error.__name__}: ")
        with pytest.raises(kind, match=text):
            SparseReduceScatter(200, comm=comm, **mine)
        assert comm.traffic.sent == 0
        assert SparseReduceScatter(200, k=9, comm=comm).step(np.ones(200)).size == comm.size + 1 + 63 - (comm.rank < 1)

    ranks.run(body)


@pytest.mark.ranks(3)
@pytest.mark.parametrize(
    "options", [{"counts": ([100, 50, 50], [50, 50, 100])}, {"k": (3, 4)}, {"radix": (2, 3)}], ids=str
)
def test_arguments_that_differ_raise_on_every_rank(ranks, options):
    def body(comm):
        mine = {name: values[comm.rank > 0] for name, values in options.items()}
        with pytest.raises(
            ValueError, match="(?s)all ranks must call with the same arguments, but.*rank 0: .*ranks 1, 2"
        ):
            SparseReduceScatter(200, comm=comm, **mine)
        assert comm.traffic.sent == 0

    ranks.run(body)


def test_an_allreduce_takes_no_algorithm_that_scatters():
    with pytest.raises(ValueError, match="algorithm must leave the sum on every rank, as dense, .*got OkTopkScatter"):
        SparseAllreduce(200, comm=World(1).run(lambda comm: comm)[0], algorithm=OkTopkScatter())
    with pytest.raises(ValueError, match="algorithm must leave the whole sum on every rank, got OkTopkScatter"):
        Fused(OkTopkScatter(), (0,), 0.5)
