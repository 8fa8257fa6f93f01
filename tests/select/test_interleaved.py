"""Interleaved selection: whose turn it is, step by step, against sequences worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sparse_mpi import Layout, World
from sparse_mpi.select.alldim import AllDim
from sparse_mpi.select.exact import top_k
from sparse_mpi.select.interleaved import Interleaved

LAYOUT = Layout.of([(6, 50), (6,), (4, 30, 2), (4,), (10, 20)])  # matrices 0, 2 and 4
N, K = LAYOUT.size, 90
THRESHOLD = Interleaved(mode="threshold", steps=400)


def vector(step: int) -> np.ndarray:
    return np.random.default_rng(step).standard_normal(N).astype(np.float32)


def whose_turn(chosen: Interleaved, steps: int) -> list[str]:
    """For each step and matrix "a", all-dimension selection, or "k", plain top-k, as its entries show."""
    state, turns = chosen.init(LAYOUT, K), []
    for step in range(steps):
        x = vector(step)
        alldim, _ = AllDim(chosen.rows).select(x, K, AllDim().init(LAYOUT, K))
        selected, state = chosen.select(x, K, state)
        assert selected.nnz == K
        turn = ""
        for number in (0, 2, 4):
            lo, hi = LAYOUT.offsets[number], LAYOUT.offsets[number] + LAYOUT.sizes[number]
            mine, other = (v.indices[(v.indices >= lo) & (v.indices < hi)].tolist() for v in (selected, alldim))
            plain = (top_k(x[lo:hi], len(other)).indices + lo).tolist()
            assert mine in (other, plain) and other != plain
            turn += "a" if mine == other else "k"
        turns.append(turn)
    return turns


def test_alternates_with_alldim_first_and_the_last_matrix_stays():
    assert whose_turn(Interleaved(), 5) == ["aaa", "kka", "aaa", "kka", "aaa"]
    assert whose_turn(Interleaved(rows="axis1"), 3) == ["aaa", "kka", "aaa"]
    assert whose_turn(Interleaved(always_alldim=0), 3) == ["aaa", "kkk", "aaa"]
    assert whose_turn(Interleaved(always_alldim=2), 3) == ["aaa", "kaa", "aaa"]
    assert whose_turn(Interleaved(always_alldim=9), 3) == ["aaa"] * 3


def test_dense_tensors_take_no_turns():
    chosen = Interleaved(dense=(0, 1), always_alldim=1)
    state = replace(chosen.init(LAYOUT, K), step=1)
    assert [(t.rows, t.whole) for t in chosen.pattern(600, state)] == [
        (1, True),
        (1, True),
        (1, False),
        (1, False),
        (10, False),
    ]


def drive(chosen: Interleaved, thresholds: list[float]) -> list[tuple[int, float, int, bool]]:
    """Selections made, threshold, period and turn of the first matrix at each refresh; all matrices are alike."""
    state, seen = chosen.init_agreeing(LAYOUT, K), []
    for threshold in thresholds:
        due = chosen.due(state)
        while not due.any():
            _, state = chosen.select(vector(state.step), K, state)
            due = chosen.due(state)
        state = chosen.adapt(state, np.full(due.sum(), threshold))
        assert due.all() and len(set(state.periods)) == len(set(state.on)) == 1
        seen.append((state.step, float(state.thresholds[0]), int(state.periods[0]), bool(state.on[0])))
    return seen


def test_periods_and_turns_follow_the_thresholds():
    expected = [
        (15, 8.0, 10, False),  # after the warm-up; nothing to compare with
        (25, 8.72, 11, True),  # 0.72 < 0.8: calm
        (36, 9.06, 13, True),  # 0.34 < 0.436: very calm
        (49, 10.5, 12, False),  # 1.44 > 0.906: moved
        (61, 13.0, 10, False),  # 2.5 > 2.1: moved much
        (71, 10.0, 8, False),  # 3 > 2.6: moved much, down
        (79, 11.0, 8, False),  # exactly a tenth: nothing
        (87, 10.5, 10, True),  # 0.5 < 0.55
        (97, 10.5, 12, True),
    ]
    assert drive(THRESHOLD, [row[1] for row in expected]) == expected


def test_the_period_goes_no_lower_than_five():
    short = Interleaved(mode="threshold", steps=400, period=6)
    assert [row[2] for row in drive(short, [1, 2, 3.5, 7, 8])] == [6, 5, 5, 5, 5]


def test_thresholds_that_are_no_numbers_do_not_stick():
    seen = drive(THRESHOLD, [1, np.nan, 1, 1, np.inf, 1, 1])
    assert [row[2] for row in seen] == [10, 10, 10, 12, 10, 10, 12]
    assert [row[3] for row in seen] == [False, False, False, True, False, False, True]


def test_matrices_keep_time_by_themselves():
    state = THRESHOLD.init_agreeing(LAYOUT, K)
    for step in range(25):
        _, state = THRESHOLD.select(vector(step), K, state)
        if THRESHOLD.due(state).any():
            state = THRESHOLD.adapt(state, np.array([1.0, 1.0] if step == 14 else [1.0, 2.0]))
    assert state.periods.tolist() == [12, 8] and state.on.tolist() == [True, False]
    assert [t.rows for t in THRESHOLD.pattern(K, state)] == [6, 1, 1, 1, 10]
    state = replace(state, step=33)
    assert THRESHOLD.due(state).tolist() == [False, True] and len(THRESHOLD.thresholds(vector(0), K, state)) == 1
    state = THRESHOLD.adapt(state, np.array([2.0]))
    assert state.thresholds.tolist() == [1, 2] and state.refresh.tolist() == [37, 33 + 10]


def test_the_last_quarter_is_alldim_alone():
    chosen = Interleaved(mode="threshold", steps=40)
    state, turns = chosen.init_agreeing(LAYOUT, K), []
    for step in range(40):
        turns.append(chosen.pattern(K, state)[0].rows == 6)
        _, state = chosen.select(vector(step), K, state)
        state = chosen.agree(vector(step), K, state, lambda own: np.arange(1, 3) * 10.0 ** len(turns))
    assert turns == [False] * 30 + [True] * 10 and not chosen.due(state).any()


def test_thresholds_are_kth_magnitudes_and_their_means_the_same_on_all_ranks():
    def body(comm):
        x = (comm.rank + 1) * vector(0)
        _, state = THRESHOLD.select(x, K, replace(THRESHOLD.init_agreeing(LAYOUT, K), step=14))
        own = THRESHOLD.thresholds(x, K, state)
        for number, threshold in zip((0, 2), own, strict=True):
            lo, size = LAYOUT.offsets[number], LAYOUT.sizes[number]
            entries = next(t.entries for t in THRESHOLD.pattern(K, state) if t.tensor == number)
            assert threshold == np.sort(np.abs(x[lo : lo + size]))[-entries]
        return own, THRESHOLD.agree(x, K, state, lambda own: comm.allreduce(own) / comm.size).thresholds

    seen = World(3).run(body)
    for _, agreed in seen:
        np.testing.assert_allclose(agreed, np.mean([own for own, _ in seen], axis=0), rtol=1e-15)
        assert agreed.tobytes() == seen[0][1].tobytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "sometimes"}, "mode must be one of alternate, threshold, got 'sometimes'"),
        ({"mode": "threshold"}, "steps must be all steps of training in mode='threshold', at least 1, got None"),
        ({"always_alldim": -1}, "always_alldim must be at least 0"),
        ({"period": 4}, "period must be at least 5 steps, got 4"),
        ({"warmup": 0}, "warmup must be at least 1 step"),
        ({"rows": "best"}, "rows must be one of"),
    ],
)
def test_bad_hyperparameters_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Interleaved(**options)
