"""The global threshold: predicted, counted, searched for, shared among ties; and the published rule."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi import World
from sparse_mpi.algorithms.global_threshold import Bracket, Counted, ThresholdPredictor
from sparse_mpi.algorithms.published import StaleRule, StaleState, StaleThreshold
from sparse_mpi.arrays import magnitude_bits
from sparse_mpi.comm import NullComm
from sparse_mpi.sparse import SparseVector, truncate


def bits_of(values, dtype=np.float32):
    return magnitude_bits(np.asarray(values, dtype))


def cut(rule, values, *given):
    """What `cut` returns of these sums, with a mask in place of the entries."""
    found, *others = rule.cut(SparseVector(np.arange(len(values), dtype=np.int32), values, len(values)), *given)
    keep = np.isin(np.arange(len(values)), found.indices)
    assert found.values.tobytes() == values[keep].tobytes()
    return keep, *others


def whole(dtype):
    return Bracket(0, 1 << (8 * np.dtype(dtype).itemsize - 1))


@given(
    st.lists(st.lists(st.floats(-1e3, 1e3, width=32), max_size=40), min_size=1, max_size=5),
    st.integers(1, 60),
    st.builds(ThresholdPredictor, st.integers(0, 2**31 - 1), st.integers(-(2**21), 2**21), st.integers(0, 2**20)),
    st.sampled_from([np.float32, np.float64]),
)
def test_cut_finds_k_entries_from_any_prediction(entries, k, predictor, dtype):
    """The largest 0.9k to k entries, or all if there are no more; ties are taken until there are k."""

    def body(comm):
        values = np.asarray(entries[comm.rank], dtype)
        keep, counts, _, following = cut(Counted(), values, k, predictor, comm)
        return bits_of(values[keep], dtype), bits_of(values[~keep], dtype), counts, following, comm.traffic

    results = World(len(entries)).run(body)
    kept, left = (np.concatenate([result[i] for result in results]) for i in (0, 1))
    assert 0.9 * k <= len(kept) <= k or (len(left) == 0 and len(kept) < k)
    assert not len(kept) or not len(left) or kept.min() >= left.max()
    assert all(counts.tolist() == [len(result[0]) for result in results] for _, _, counts, _, _ in results)
    assert {following for _, _, _, following, _ in results} == {results[0][3]} and results[0][3].spacing > 0
    if len(entries) > 1:
        _, values, messages, control = Counted().bound(1000, k, len(entries))
        assert results[0][-1].sent == values and results[0][-1].messages <= messages
        assert results[0][-1].control <= control


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("known", [None, "smallest", 1.0, "largest"])
@pytest.mark.parametrize("values", [["smallest", "largest"], ["smallest"], ["largest", np.inf], [np.nan, 1.0], [0.0]])
def test_search_over_the_whole_range(values, known, dtype):
    """Also from a bracket that one end of is known, whichever it is."""
    limits = {"smallest": np.finfo(dtype).smallest_subnormal, "largest": np.finfo(dtype).max}
    entries = np.array([limits.get(v, v) for v in values] * 20, dtype)
    made = bits_of(entries, dtype)
    for k in (5, 19, 20, 25, 1000):
        bracket, near = whole(dtype), 0
        if known is not None:
            end, near = int(bits_of([limits.get(known, known)], dtype)[0]), 1000
            bracket = bracket._replace(**{"low" if (made >= end).sum() > k else "high": end})
            if bracket.high == end and (made >= end).sum() >= 0.9 * k:
                continue
        found = Counted().search(entries, k, NullComm(), bracket, near)
        above, reach = (made >= found.high).sum(), (made >= found.low).sum()
        if found.low == found.high:
            assert 0.9 * k <= reach <= k or reach == len(made) < k
        else:
            assert found.high - found.low == 1 and above < 0.9 * k and reach > k


@pytest.mark.ranks(2, 3, 8)
def test_a_good_prediction_needs_one_allgather(ranks):
    """And one that is a little off two rounds more, one for what it learns and one for the counts."""
    k, depth = 1000, (ranks.size - 1).bit_length()

    def body(comm):
        entries = np.random.default_rng(comm.rank).standard_normal(4 * k, np.float32)
        _, _, _, predictor = cut(Counted(), entries, k, ThresholdPredictor(), comm)
        messages = []
        for factor in (1.0, 1.01, 0.99, 1.3, 0.8):
            before = comm.traffic.messages
            _, _, _, predictor = cut(Counted(), np.float32(factor) * entries, k, predictor, comm)
            messages.append(comm.traffic.messages - before)
        return messages

    messages = ranks.run(body)[0]
    assert messages[:3] == [depth] * 3 and max(messages[3:]) <= 2 * depth + 2 * 2 * depth


@pytest.mark.ranks(1, 2, 3, 8)
def test_ties_are_cut_by_index_over_all_ranks(ranks):
    """Rank r holds 10 entries of magnitude 1 and one of 2; of the ties, lower regions go first."""
    k = ranks.size + 13
    local = np.array([1.0] * 10 + [-2.0])

    def body(comm):
        keep, counts, _, _ = cut(Counted(), local, k, ThresholdPredictor(), comm)
        return np.flatnonzero(keep) + 11 * comm.rank, counts

    results = ranks.run(body)
    everything = np.tile(local, ranks.size)
    every = SparseVector(np.arange(len(everything), dtype=np.int32), everything, len(everything))
    assert np.concatenate([kept for kept, _ in results]).tolist() == truncate(every, k).indices.tolist()
    assert all(counts.tolist() == [len(kept) for kept, _ in results] for _, counts in results)


@pytest.mark.ranks(1, 2, 5)
def test_published_rule_gathers_everything_now_and_then_and_is_stale_in_between(ranks):
    k, rule = 100, StaleThreshold(period=4)

    def body(comm):
        state, seen = rule.init(), []
        entries = np.random.default_rng(comm.rank).standard_normal(300).astype(np.float32)
        for step in range(9):
            before = comm.traffic.copy()
            _, counts, _, state = cut(rule, np.float32(1 + step / 4) * entries, k, state, comm)
            seen.append((int(counts.sum()), (comm.traffic - before).sent, state.bits))
        return seen

    results = ranks.run(body)
    counts, sent, bits = (list(column) for column in zip(*results[0], strict=True))
    assert all([step[::2] for step in seen] == [step[::2] for step in results[0]] for seen in results)
    assert counts[::4] == [k] * 3 and counts[3] > 4 * k / 3
    assert all((s > 0) == (step % 4 == 0 and ranks.size > 1) for step, s in enumerate(sent))
    stale = np.array(bits[2:4], np.int32).view(np.float32)
    assert stale[1] / stale[0] == pytest.approx(1.008)


def test_published_rule_lowers_a_threshold_that_nothing_reaches():
    high = int(bits_of([5.0])[0])
    keep, counts, _, state = cut(StaleThreshold(), np.ones(3, np.float32), 3, StaleState(high, 1, 3), NullComm())
    assert not keep.any() and counts.tolist() == [0] and state.bits < high
    _, _, _, state = cut(StaleThreshold(), np.ones(3, np.float32), 2, state, NullComm())
    assert state == StaleState(int(bits_of([1.0 * 1.008])[0]), 1, 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_stale_threshold_moves_only_where_its_count_is_off(dtype):
    """The ends of the interval are inside it; a refresh is due after a period and for another k."""
    rule, bits = StaleRule(4, 1.25, Fraction(4, 3)), int(bits_of([8.0], dtype)[0])
    after = {count: rule.nudged(bits, count, 30, np.dtype(dtype)) for count in (0, 19, 20, 40, 41)}
    assert after[20] == after[40] == bits
    assert after[0] == after[19] == bits_of([6.4], dtype)[0] and after[41] == bits_of([10.0], dtype)[0]
    assert [rule.refresh_due(age, 30, 30) for age in range(5)] == [True, False, False, False, True]
    assert rule.refresh_due(1, 30, 31)


@pytest.mark.ranks(1, 4)
def test_magnitudes_that_rounding_leaves_are_found_without_a_search(ranks):
    """Values of 7 bits of mantissa tie by the dozen; the candidates that surround a tie settle it."""
    k, depth = 200, (ranks.size - 1).bit_length()

    def body(comm):
        values = 1 + np.random.default_rng(comm.rank).integers(0, 40, 400).astype(np.float32) / 128
        _, _, _, predictor = cut(Counted(mantissa=7), values, k, ThresholdPredictor(), comm)
        before = comm.traffic.messages
        for _ in range(3):
            keep, counts, _, predictor = cut(Counted(mantissa=7), values, k, predictor, comm)
        return comm.traffic.messages - before, values[keep], values[~keep], counts.sum()

    results = ranks.run(body)
    kept, left = (np.concatenate([result[i] for result in results]) for i in (1, 2))
    assert results[0][0] <= 3 * depth + 2 * 2 * depth and kept.min() >= left.max()
    assert 0.9 * k <= len(kept) == results[0][3] <= k


def test_most_rounds_is_enough_for_ties():
    """The longest search: one value, all over the ranks, deep in the range."""
    values = np.full(50, 1.2345678)

    def body(comm):
        Counted().search(values, 60, comm, whole(np.float64))
        return comm.traffic.messages

    assert max(World(3).run(body)) <= Counted().most_rounds(60) * 2 * 2
