"""Histograms: those of boost-histogram come back as what they were; of a billion bins the filled ones take memory."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import collectives
from sparse_mpi.contrib import histogram_entries

from ..launch import launch, needs_mpi
from ..prefork import copied

# Weights and their squares of `each` events a rank, in 10^9 bins, summed in one exchange, and the memory for that
BILLION = """
import resource, sys
import numpy as np
from pathlib import Path
from mpi4py import MPI
import sparse_mpi

def filled(rank):
    rng = np.random.default_rng(rank)
    bins, events = np.unique(np.append(rng.integers(0, 10**9, each), np.arange(1000)), return_counts=True)
    return bins, np.stack([events / 4, events / 16], axis=1)

world, each = MPI.COMM_WORLD, int(sys.argv[1])
sparse_mpi.allreduce((np.arange(2000), np.ones((2000, 2))))  # connects
before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
mine = filled(world.rank)
keys, values = sparse_mpi.allreduce(mine)
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
weight = world.allreduce(mine[1].sum(axis=0))
assert (np.diff(keys) > 0).all() and np.array_equal(values.sum(axis=0), weight)  # exact: quarters
first = sum(filled(rank)[1][:1000] for rank in range(world.size))
assert np.array_equal(keys[:1000], np.arange(1000)) and np.array_equal(values[:1000], first)
total = world.reduce(used)
if world.rank == 0:
    print(len(keys), total)
"""


@needs_mpi
@pytest.mark.jobs
@pytest.mark.parametrize(
    ("each", "most"), [(100_000, 400e6), pytest.param(1_000_000, 2e9, marks=pytest.mark.full("takes 2 GB"))]
)
def test_a_billion_bins_take_the_memory_of_those_that_are_filled(each, most):
    done = launch(4, *copied("-c", BILLION, str(each)))
    assert done.returncode == 0, done.stderr
    bins, used = map(int, done.stdout.split())
    assert bins > 3.9 * each
    assert used < most  # of all ranks together, where a dense one of int64 takes 8 GB of each


def histograms():
    """Return boost_histogram and a histogram without events for each storage, with two axes and flow bins."""
    boost = pytest.importorskip("boost_histogram", reason="needs boost-histogram")
    axes = boost.axis.Regular(50, 0, 1), boost.axis.StrCategory(["a", "b"])
    kinds = boost.storage.Int64, boost.storage.AtomicInt64, boost.storage.Double, boost.storage.Weight
    return boost, [boost.Histogram(*axes, storage=kind()) for kind in kinds]


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("call", ["allreduce", "reduce", "reduce_scatter"])
def test_histograms_of_boost_come_back_as_what_they_were(ranks, call):
    boost, empty = histograms()

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
    boost, _ = histograms()

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
