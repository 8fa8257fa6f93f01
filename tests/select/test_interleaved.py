"""Interleaved selection: whose turn it is, step by step, against sequences worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from sparse_mpi import Layout
from sparse_mpi.select.alldim import AllDim
from sparse_mpi.select.exact import top_k
from sparse_mpi.select.interleaved import Interleaved

from ..gradients import gradient

LAYOUT = Layout.of([(6, 50), (6,), (4, 30, 2), (4,), (10, 20)])  # matrices 0, 2 and 4
N, K = LAYOUT.size, 90


def whose_turn(chosen: Interleaved, steps: int) -> list[str]:
    """For each step and matrix "a", all-dimension selection, or "k", plain top-k, as its entries show."""
    state, turns = chosen.init(LAYOUT, K), []
    for step in range(steps):
        x = gradient(0, step, N)
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
