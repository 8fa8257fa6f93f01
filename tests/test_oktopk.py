"""Ok-Topk's parts: regions, the search for the global threshold, ties, balancing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_mpi import SparseAllreduce, World, sparse_allreduce
from sparse_mpi.algorithms.base import Bound
from sparse_mpi.algorithms.global_threshold import most_rounds, search
from sparse_mpi.algorithms.oktopk import OkTopk, balance, cut, draw_regions
from sparse_mpi.comm import NullComm
from sparse_mpi.kernels.base import magnitude_bits
from sparse_mpi.sparse import Layout, SparseVector, take, truncate

from .conformance import Case, train


def bits_of(values, dtype=np.float32):
    return magnitude_bits(np.asarray(values, dtype))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.floats(-1e3, 1e3, width=32), max_size=40), min_size=1, max_size=5),
    st.integers(1, 60),
    st.floats(0, 2e3, width=32),
    st.sampled_from([np.float32, np.float64]),
)
def test_search_finds_k_entries_from_any_guess(entries, k, guess, dtype):
    """The threshold is the same on all ranks; 0.9k to k entries reach it, ties at it aside, or there are no more."""
    everything = np.sort(np.concatenate([bits_of(e, dtype) for e in entries]))

    def body(comm):
        return search(np.asarray(entries[comm.rank], dtype), k, int(bits_of([guess], dtype)[0]), comm), comm.traffic

    results = World(len(entries)).run(body)
    (found, traffic) = results[0]
    assert {result for result, _ in results} == {found}
    above, reach = (everything > found.bits).sum(), (everything >= found.bits).sum()
    if found.ties:
        assert above < 0.9 * k and reach > k
    else:
        assert 0.9 * k <= reach <= k or (reach == len(everything) < k)
    if len(entries) > 1:
        assert traffic.messages <= most_rounds(k) * 2 * 3 and traffic.sent == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("guess", [0.0, "smallest", 1.0, "largest", np.inf, np.nan])
@pytest.mark.parametrize("values", [["smallest", "largest"], ["smallest"], ["largest", np.inf], [np.nan, 1.0], [0.0]])
def test_search_over_the_whole_range(values, guess, dtype):
    limits = {"smallest": np.finfo(dtype).smallest_subnormal, "largest": np.finfo(dtype).max}
    entries = np.array([limits.get(v, v) for v in values] * 20, dtype)
    made = bits_of(entries, dtype)
    for k in (5, 19, 20, 25, 1000):
        found = search(entries, k, int(bits_of([limits.get(guess, guess)], dtype)[0]), NullComm())
        above, reach = (made > found.bits).sum(), (made >= found.bits).sum()
        assert (above < 0.9 * k and reach > k) if found.ties else (0.9 * k <= reach <= k or reach == len(made) < k)


@pytest.mark.ranks(2, 3, 8)
def test_a_good_guess_needs_one_round(ranks):
    k = 1000

    def body(comm):
        entries = np.random.default_rng(comm.rank).standard_normal(4 * k, np.float32)
        first = search(entries, k, 0, comm)
        before = comm.traffic.copy()
        again = search(entries, k, first.bits + 10_000, comm)
        return (comm.traffic - before).messages, again

    messages, _ = ranks.run(body)[0]
    assert messages == 2 * (ranks.size - 1).bit_length()


@pytest.mark.ranks(1, 2, 3, 5, 8)
def test_regions_cut_the_selections_equally(ranks):
    """Even if all selections crowd into a hundredth of the vector."""
    n, nnz = 10_000, 64 * ranks.size

    def body(comm):
        rng = np.random.default_rng(comm.rank)
        indices = np.sort(rng.choice(np.arange(7000, 7000 + 2 * nnz), nnz, replace=False)).astype(np.int32)
        boundaries, guess = draw_regions(SparseVector(indices, rng.standard_normal(nnz), n), comm)
        assert guess > 0 and boundaries[0] == 0 and boundaries[-1] == n and (np.diff(boundaries) >= 0).all()
        return boundaries, np.histogram(indices, boundaries)[0]

    results = ranks.run(body)
    assert all((boundaries == results[0][0]).all() for boundaries, _ in results)
    counts = np.sum([c for _, c in results], axis=0)
    assert counts.max() <= 1.3 * counts.mean()


@pytest.mark.ranks(1, 2, 3, 8)
def test_ties_are_cut_by_index_over_all_ranks(ranks):
    """Rank r holds 10 entries of magnitude 1 and one of 2; of the ties, lower regions go first."""
    k = ranks.size + 13

    def body(comm):
        indices = np.arange(11, dtype=np.int32) + 11 * comm.rank
        reduced = SparseVector(indices, np.array([1.0] * 10 + [-2.0]), 11 * comm.size)
        chosen, counts = cut(reduced, search(reduced.values, k, 0, comm), k, comm)
        return take(reduced, chosen), counts

    results = ranks.run(body)
    kept = np.concatenate([v.indices for v, _ in results])
    whole = np.tile([1.0] * 10 + [-2.0], ranks.size)
    every = SparseVector(np.arange(len(whole), dtype=np.int32), whole, len(whole))
    assert kept.tolist() == truncate(every, k).indices.tolist()
    assert all(counts.tolist() == [v.nnz for v, _ in results] for _, counts in results)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(sum))
def test_balance_keeps_order_and_moves_no_more_than_the_surplus(counts):
    counts, ends = np.array(counts), np.cumsum(counts)

    def body(comm):
        own = np.arange(ends[comm.rank] - counts[comm.rank], ends[comm.rank], dtype=np.int32)
        regions = np.stack([ends - counts, ends], axis=1)
        moved, after, wider = balance(SparseVector(own, own.astype(np.float32), ends[-1]), counts, regions, comm)
        start, stop = wider[comm.rank]
        assert moved.nnz == after[comm.rank] and all(start <= index < stop for index in moved.indices)
        return moved.indices, after, comm.traffic.sent

    results = World(len(counts)).run(body)
    after = results[0][1]
    assert np.concatenate([rows for rows, _, _ in results]).tolist() == list(range(ends[-1]))
    assert after.max() - after.min() <= 1 and after.sum() == counts.sum()
    assert max(sent for _, _, sent in results) <= 8 * counts.max()


@pytest.mark.ranks(4)
def test_unbalanced_results_move_and_regions_are_redrawn(ranks):
    """A gradient whose large entries jump to another layer: once they move, from then on the regions fit again."""
    n, k = 4000, 256

    def body(comm):
        reducer = SparseAllreduce(n, k=k, comm=comm, algorithm="oktopk")
        seen = []
        for step in range(6):
            g = np.random.default_rng([step, comm.rank]).standard_normal(n).astype(np.float32)
            layer = slice(0, 1000) if step < 3 else slice(3000, 4000)
            g[layer] *= 1000
            total = reducer.step(g)
            seen.append((np.histogram(total.indices, reducer._state.boundaries)[0], reducer._state.stale))
        return seen

    for seen in ranks.run(body):
        stale = [was for _, was in seen]
        assert stale == [False, False, False, True, False, False]
        assert seen[3][0].max() > 1.5 * k / 4 >= seen[4][0].max()


def test_every_trigger_gives_the_same_sum():
    """Balancing moves results around; it does not change them."""

    def body(comm, trigger):
        x = np.random.default_rng(comm.rank).standard_normal(1000).astype(np.float32)
        x[:100] *= 100 * (comm.rank == 0)
        total, _ = sparse_allreduce(x, k=100, comm=comm, algorithm=OkTopk(trigger=trigger))
        return total.indices.tobytes(), total.values.tobytes()

    results = [World(5).run(lambda comm, t=trigger: body(comm, t)) for trigger in (1.0, 1.5, 100.0)]
    assert results[0] == results[1] == results[2]


def test_bound_is_the_papers_for_many_entries():
    for ranks in (2, 8, 256):
        k = 64 * ranks
        words = OkTopk().bound(Layout.of(100 * k), k, ranks).words
        assert words == pytest.approx(6 * k * (ranks - 1) / ranks + 2 * k / ranks)
    assert OkTopk().bound(Layout.of(100), 10, 1) == Bound(0, 0, 0, 0)


@pytest.mark.parametrize("options", [{"period": 0}, {"trigger": 0.5}, {"residual": "nobody"}])
def test_bad_hyperparameters(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        OkTopk(**options)


def test_runs_on_the_null_transport():
    """What the algorithm costs without a network: the benchmark's control."""
    x = np.random.default_rng(0).standard_normal(1000)
    total, sent = sparse_allreduce(x, k=100, comm=NullComm(), algorithm="oktopk")
    assert total.indices.tolist() == sent.indices.tolist() and 90 <= total.nnz <= 100


@pytest.mark.parametrize("case", ["random", "layer-skewed", "correlated"])
def test_volume_with_control(ranks, case):
    """Payload and control of every step, fresh or refreshing, stay below 6k(P-1)/P words; counts are on target."""
    k = 64 * ranks.size
    scale = np.where(np.arange(100 * k) // (10 * k) == 3, 1000.0 if case == "layer-skewed" else 1.0, 1.0)

    def make(rng, rank, size):
        shared = np.random.default_rng(7).standard_normal(100 * k) if case == "correlated" else 0.0
        return scale * (shared + rng.standard_normal(100 * k))

    seen = ranks.run(lambda comm: train(comm, "oktopk", Case(make, 100 * k, k), np.float32, 70, period=16))
    limit = 4 * 6 * k * (ranks.size - 1) / ranks.size
    for step in [step for steps in seen for step in steps]:
        assert step.report.traffic.sent + step.report.traffic.control <= limit
        assert 0.9 * k <= step.report.selected <= 1.1 * k
        assert 0.9 * k <= step.report.total <= 1.1 * k


def test_1024_ranks():
    """The simulator carries a thousand ranks."""

    def body(comm):
        reducer = SparseAllreduce(100_000, k=1000, comm=comm, algorithm="oktopk")
        total = reducer.step(np.random.default_rng(comm.rank).standard_normal(100_000, np.float32))
        return total.nnz, reducer.report.traffic.sent

    results = World(1024).run(body)
    assert {nnz for nnz, _ in results} == {results[0][0]} and 900 <= results[0][0] <= 1000
