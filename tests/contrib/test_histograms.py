"""Histograms: those of boost-histogram come back as what they were; of a billion bins the filled ones take memory."""

from __future__ import annotations

import tracemalloc

import boost_histogram as boost
import numpy as np
import pytest

from sparse_mpi import World, collectives
from sparse_mpi.contrib import histogram_entries


def test_a_billion_bins_take_the_memory_of_those_that_are_filled():
    """Weights and their squares, of 100,000 events a rank; a dense one of int64 would take 8 GB a rank."""

    def filled(rank):
        drawn = np.append(np.random.default_rng(rank).integers(0, 10**9, 100_000), np.arange(1000))
        bins, events = np.unique(drawn, return_counts=True)
        return bins, np.stack([events / 4, events / 16], axis=1)

    given = [filled(rank) for rank in range(4)]
    tracemalloc.start()
    try:
        found = World(4).run(lambda comm: collectives.allreduce(given[comm.rank], comm=comm))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    keys, values = found[0]
    assert len(keys) > 390_000 and (np.diff(keys) > 0).all() and keys[:1000].tolist() == [*range(1000)]
    assert (values.sum(axis=0) == sum(weights.sum(axis=0) for _, weights in given)).all()  # exact: quarters
    assert (values[:1000] == sum(weights[:1000] for _, weights in given)).all()
    assert peak < 4 * 400 * len(keys)  # bytes, of all ranks together


AXES = boost.axis.Regular(50, 0, 1), boost.axis.StrCategory(["a", "b"])  # with flow bins
STORAGES = boost.storage.Int64, boost.storage.AtomicInt64, boost.storage.Double, boost.storage.Weight


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("call", ["allreduce", "reduce", "reduce_scatter"])
def test_histograms_of_boost_come_back_as_what_they_were(ranks, call):
    empty = [boost.Histogram(*AXES, storage=kind()) for kind in STORAGES]

    def fill(histogram, rank):
        rng = np.random.default_rng(rank)
        weighted = {} if histogram.storage_type.__name__.endswith("Int64") else {"weight": rng.integers(1, 9, 30) / 4}
        return histogram.copy().fill(rng.normal(0.5, 0.4, 30), rng.choice(["a", "b", "c"], 30), **weighted)

    def body(comm):
        entries = [histogram_entries(fill(histogram, comm.rank)) for histogram in empty]
        return [getattr(collectives, call)(each, comm=comm) for each in entries]

    found = ranks.run(body)
    for number, histogram in enumerate(empty):
        expected = fill(histogram, 0)
        for rank in range(1, ranks.size):
            expected += fill(histogram, rank)
        assert expected.values(flow=True)[0].any()  # underflow, too
        results = [each[number] for each in found if each[number] is not None]
        if call == "reduce_scatter":
            results = [sum(results[1:], results[0])]
        for result in results:
            assert type(result) is boost.Histogram and result == expected


@pytest.mark.ranks(2)
def test_histograms_of_other_axes_or_of_means_are_refused_by_all(ranks):
    def refusal(comm, histogram):
        with pytest.raises((TypeError, ValueError)) as refused:
            collectives.allreduce(histogram_entries(histogram), comm=comm)
        return str(refused.value)

    def body(comm):
        near = boost.axis.Regular(10, 0, 1 + comm.rank * 1e-12)  # which is written as 1
        return refusal(comm, boost.Histogram(near)), refusal(
            comm, boost.Histogram(boost.axis.Regular(3, 0, 1), storage=boost.storage.Mean())
        )

    for other, mean in ranks.run(body):
        assert "digest of edges" in other
        assert "storage of Int64, AtomicInt64, Double, Weight, whose numbers add up, got Mean" in mean
