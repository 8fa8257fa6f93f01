"""The global threshold: predicted, counted, searched for, shared among ties; and the published rule."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi import World
from sparse_mpi.algorithms.global_threshold import Counted, ThresholdPredictor
from sparse_mpi.algorithms.published import StaleRule, StaleState, StaleThreshold
from sparse_mpi.arrays import magnitude_bits
from sparse_mpi.comm import NullComm
from sparse_mpi.sparse import SparseVector

# With the largest NaN there is, which CUDA makes
ENDS = [np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max, np.inf, np.nan, -0.0]
ENDS += [np.uint32(0x7FFFFFFF).view(np.float32)]


def bits_of(values, dtype=np.float32):
    return magnitude_bits(np.asarray(values, dtype))


def cut(rule, values, *given):
    """What `cut` returns of these sums, with a mask in place of the entries."""
    found, *others = rule.cut(SparseVector(np.arange(len(values), dtype=np.int32), values, len(values)), *given)
    keep = np.isin(np.arange(len(values)), found.indices)
    assert found.values.tobytes() == values[keep].tobytes()
    return keep, *others


@given(
    st.lists(st.lists(st.floats(-1e3, 1e3, width=32) | st.sampled_from(ENDS), max_size=40), min_size=1, max_size=5),
    st.integers(1, 60),
    st.builds(ThresholdPredictor, st.integers(0, 2**31 - 1), st.integers(-(2**21), 2**21), st.integers(0, 2**20)),
    st.sampled_from([np.float32, np.float64]),
)
def test_cut_finds_k_entries_from_any_prediction(entries, k, predictor, dtype):
    """The largest 0.9k to k entries, or all if there are no more; of ties, lower regions and indices go first."""

    def body(comm):
        values = np.asarray(entries[comm.rank], dtype)
        keep, counts, _, following = cut(Counted(), values, k, predictor, comm)
        return bits_of(values[keep], dtype), bits_of(values[~keep], dtype), counts, following, comm.traffic, keep

    results = World(len(entries)).run(body)
    kept, left = (np.concatenate([result[i] for result in results]) for i in (0, 1))
    assert 0.9 * k <= len(kept) <= k or (len(left) == 0 and len(kept) < k)
    assert not len(kept) or not len(left) or kept.min() >= left.max()
    if len(kept):
        keep = np.concatenate([result[5] for result in results])
        ties = keep[bits_of(np.concatenate(entries), dtype) == kept.min()]
        assert ties.tolist() == sorted(ties, reverse=True)
    assert all(result[2].tolist() == [len(each[0]) for each in results] for result in results)
    assert {result[3] for result in results} == {results[0][3]} and results[0][3].spacing > 0
    if len(entries) > 1:
        _, values, messages, control = Counted().bound(1000, k, len(entries))
        assert results[0][4].sent == values and results[0][4].messages <= messages
        assert results[0][4].control <= control


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
