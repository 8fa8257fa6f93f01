"""What a step's total is worth, measured while training runs."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce
from sparse_mpi.comm import NullComm
from sparse_mpi.monitor.watch import Quality, Watch

N = 40


def watched(comm, gradients, every=1, **options) -> list[Quality]:
    reducer = SparseAllreduce(N, comm=comm, **options)
    reducer.watch, found = Watch(every), []
    for step in range(6):
        reducer.step(gradients(step, comm.rank), check=step == 3)
        found.append(reducer.watch.quality)
    return found


def normal(step, rank):
    return np.random.default_rng([step, rank]).standard_normal(N).astype(np.float32)


@pytest.mark.ranks(1, 3, 5)
def test_where_everything_is_sent_nothing_is_missed_and_nothing_waits(ranks):
    for found in ranks.run(lambda comm: watched(comm, normal, algorithm="dense", k=4)):
        for quality in found:
            assert (quality.captured, quality.wait) == (pytest.approx(1), 1)


def test_a_single_rank_attains_everything():
    found = watched(NullComm(), normal, algorithm="topka", selector="exact", k=4)
    for quality in found:
        assert quality.captured == pytest.approx(1) and quality.xi == 0
    assert found[-1].wait > 1


@pytest.mark.ranks(2)
def test_figures_by_hand(ranks):
    """Ranks agree on entry 0 and oppose each other in entry 1, which both select; entry 2 is small on both."""

    def gradients(step, rank):
        gradient = np.zeros(N, np.float32)
        gradient[:3] = 3.0, (5.0, -5.0)[rank], 2.0
        return gradient

    for found in ranks.run(lambda comm: watched(comm, gradients, algorithm="topka", selector="exact", k=1)):
        first = found[0]  # the sum is 6, 0, 4, and total is 0 at entry 1
        assert first.energy == 52 and first.removed == 0 and first.attainable == 36
        assert first.captured == 0 and first.xi == pytest.approx(np.sqrt(36 / 52)) and first.wait == 1


@pytest.mark.ranks(3)
def test_waits_are_those_since_the_last_measure_and_every_rank_measures_the_same(ranks):
    def round_robin(step, rank):
        gradient = np.full(N, 1e-3, np.float32)
        gradient[step % 3] = 10
        return gradient

    results = ranks.run(lambda comm: watched(comm, round_robin, every=2, algorithm="oktopk", selector="exact", k=1))
    for found in results:
        assert found[0] is None and found[1] is found[2] and found == results[0]
        assert found[1].wait == 1.5 and found[3].wait == 3 and found[5].wait == 3  # steps 1, 2; 3, 3; 3, 3


def test_advice_is_given_where_evidence_ends():
    good = Quality(removed=0.5, attainable=1, missed=0, energy=1, waited=300, entries=1)
    assert good.advice == ""
    assert "entries wait for 600 steps, where evidence ends at 300: raise the density to 2.0 times" in (
        good._replace(waited=600).advice
    )
    assert "has 5% of the energy that so many entries can have" in good._replace(removed=0.05).advice


@pytest.mark.ranks(1, 3)
def test_where_ranks_vote_in_units_of_second_moments_the_quality_is_in_these(ranks):
    measure = np.ldexp(np.float32(1), np.arange(N) % 7)
    options = {"algorithm": "elect", "wire": "packed", "k": 8, "second_moment": 0.9}

    def body(comm):
        plain = watched(comm, normal, **options)
        scaled = watched(comm, lambda step, rank: normal(step, rank) * measure, **options)
        assert plain == scaled
        return plain[-1].captured

    assert all(0.2 < captured <= 1.001 for captured in ranks.run(body))
