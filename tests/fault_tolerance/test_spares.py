"""Spares take the places of lost ranks: between two steps, with what the others have, and nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.comm.world import World
from sparse_mpi.fault_tolerance import Team, TooFewRanks

from .survivors import SIZE, gradient, relieved

STEPS = 8


def run(ranks, spares, leave, algorithm="oktopk", min_ranks=1):
    """What each rank has seen, see `relieved`; None if it is lost."""
    return World(ranks, leave=leave).run(lambda comm: relieved(comm, spares, STEPS, algorithm, min_ranks))


def check(found):
    """All that are there agree, and what came out is what was put in by those that were there."""
    there = {rank: each for rank, each in enumerate(found) if each is not None and each != "never called"}
    oldest = min(each[0] for each in there.values())
    assert oldest == 0, "one of the first ranks is left, in these tests"
    totals = next(each[1] for each in there.values() if each[0] == 0)
    for rank, (_, seen, _, members, _) in there.items():
        assert members == sorted(there), rank
        assert all((seen[step] == totals[step]).all() for step in seen)
    return there, totals


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_spare_takes_the_place_of_a_lost_rank(algorithm):
    there, totals = check(run(5, 1, {1: 6}, algorithm))
    assert sorted(there) == [0, 2, 3, 4] and there[4][0] in range(3, 8)
    if not ALGORITHMS[algorithm]().traits.conserves or algorithm in ("powersgd", "acpsgd", "dense-bf16"):
        return
    lost = there[0][4][0]
    # Before the transaction that the survivors name; those before the first step are of setting up
    put_in = np.zeros(SIZE)
    for rank in range(5):
        first, last = there[rank][0] if rank in there else 0, STEPS
        if rank == 1:
            last = lost.step - 1
        put_in += sum((gradient(rank, step) for step in range(first, last)), np.zeros(SIZE))
    found = sum(totals.values()) + sum(each[2] for each in there.values())
    np.testing.assert_allclose(found, put_in, rtol=0, atol=0 if ALGORITHMS[algorithm]().traits.lossless else 1e-4)


def test_nobody_lost_nobody_called():
    found = run(4, 2, {})
    assert found[2:] == ["never called"] * 2 and len(check(found)[0]) == 2


@pytest.mark.parametrize(("spares", "called"), [(1, [3]), (2, [3, 4])])
def test_as_many_are_called_as_there_are_places(spares, called):
    there, _ = check(run(3 + spares, spares, {0: 4, 2: 5}))
    assert sorted(there) == [1, *called]


def test_the_smallest_number_of_ranks_counts_spares():
    there, _ = check(run(4, 1, {1: 5}, min_ranks=3))
    assert sorted(there) == [0, 2, 3]
    with pytest.raises(TooFewRanks):
        run(4, 1, {1: 5, 2: 8}, min_ranks=3)


@given(
    st.integers(2, 4),
    st.integers(1, 2),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(-1, 5)), max_size=3),
)
def test_whenever_ranks_are_lost(ranks, spares, drawn):
    """In calls, in their admission, in recovery: those that are left agree, and their number is as it can be."""
    leave = {rank % (ranks + spares): (step, call) for rank, step, call in drawn}
    leave.pop(ranks - 1, None)
    found = run(ranks + spares, spares, leave)
    there, _ = check(found)
    lost = [rank for rank, each in enumerate(found) if each is None]
    assert len(there) <= ranks and len(there) >= min(ranks, ranks + spares - len(lost)) - len(lost)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"spares": -1}, r"spares must be in \[0, 2\], got -1; one rank must train"),
        ({"spares": 3}, r"spares must be in \[0, 2\]"),
        ({"spares": 1, "min_ranks": 3}, r"min_ranks must be in \[1, 2\], got 3; there are no more"),
    ],
)
def test_impossible_numbers_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        World(3).run(lambda comm: Team(comm, **options))
