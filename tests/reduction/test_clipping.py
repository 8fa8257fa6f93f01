"""Clipping of the mean by its norm, which ranks estimate from sketches before they reduce anything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi import ALGORITHMS, SparseAllreduce, World
from sparse_mpi.kernels.base import SKETCH
from sparse_mpi.reduction.clipping import SHORT_RANKS, clipping_factor, l2_norm, sketched
from sparse_mpi.testing.steps import same_bytes

from ..gradients import gradient
from ..kernels.test_sketch import ERROR, KINDS

N, K = 3000, 100


def norm_of_mean(given: list[np.ndarray]) -> float:
    return float(np.linalg.norm(np.mean(given, axis=0, dtype=np.float64)))


def factors(given: list[np.ndarray], most: float) -> list[float]:
    def body(comm):
        return clipping_factor(sketched([given[comm.rank]], comm.size), most, comm)

    return World(len(given)).run(body)


@given(
    st.sampled_from(list(KINDS)),
    st.integers(2, 12),
    st.floats(-1, 1),
    st.integers(1, 40_000),
    st.floats(-30, 30),
    st.integers(0, 2**32),
)
def test_the_norm_of_the_mean_is_known_to_a_few_per_cent(kind, ranks, common, n, scale, seed):
    """Whatever the gradients have in common: nothing, everything, or a sum that all but cancels."""
    rng = np.random.default_rng(seed)
    shared = KINDS[kind](rng, n)
    given = [(1 - abs(common)) * KINDS[kind](rng, n) + common * shared for _ in range(ranks)]
    given = [(10**scale * g).astype(np.float32) for g in given]
    if common < 0:
        given[-1] = (given[-1] - np.sum(given, axis=0) * (1 + common)).astype(np.float32)
    norm = norm_of_mean(given)
    for most in (norm / 3, norm * (1 + 6 * ERROR), norm * 3):
        found = set(factors(given, most)) if most else {1.0}
        assert len(found) == 1, "all ranks must scale alike, to the bit"
        assert found.pop() == pytest.approx(min(1, most / norm) if norm else 1, rel=6 * ERROR)


@pytest.mark.parametrize("ranks", [SHORT_RANKS, SHORT_RANKS + 1])
def test_the_rounding_of_many_ranks_is_small_beside_a_sketchs_error(ranks):
    given = [gradient(rank, 0, N) for rank in range(ranks)]
    norm = norm_of_mean(given)
    (found,) = set(factors(given, norm / 3))
    assert found == pytest.approx(1 / 3, rel=3 * ERROR)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_ranks_scale_alike_before_error_feedback(ranks, name):
    def body(comm):
        clipping = SparseAllreduce(N, k=K, comm=comm, algorithm=name, clip_norm=20.0)
        plain = SparseAllreduce(N, k=K, comm=comm, algorithm=name)
        for step in range(3):
            given = gradient(comm.rank, step, N) * (1e-3 if step == 1 else 1)
            before = given.tobytes()
            factor = clipping_factor(sketched([given], comm.size), 20.0, comm)
            assert (factor == 1) == (step == 1)
            assert same_bytes(clipping.step(given, check=True), plain.step(given * np.float32(factor)))
            assert given.tobytes() == before and clipping.residual.tobytes() == plain.residual.tobytes()

    ranks.run(body)


def test_a_single_rank_knows_the_norm_exactly():
    x = gradient(0, 0, N)
    assert factors([x], 2.0) == [2.0 / l2_norm(x)]


@pytest.mark.ranks(3, 4)
@pytest.mark.against_world
def test_the_same_bits_as_in_world(ranks):
    given = [gradient(rank, 0, 300_000) for rank in range(ranks.size)]

    def body(comm):
        return clipping_factor(sketched([given[comm.rank]], comm.size), 1.0, comm)

    assert ranks.run(body) == factors(given, 1.0)


@pytest.mark.ranks(3)
def test_what_it_costs_is_control_and_nothing_without_clipping(ranks):
    def body(comm):
        free, clipping = (SparseAllreduce(N, k=K, comm=comm, algorithm="topka", clip_norm=c) for c in (None, 1.0))
        spent = []
        for reducer in (free, clipping):
            before = comm.traffic.copy()
            reducer.step(gradient(comm.rank, 0, N))
            spent.append(comm.traffic - before)
        return spent

    for without, clipped in ranks.run(body):
        assert clipped.sent == without.sent and clipped.received == without.received
        assert clipped.control - without.control == 2 * 4 * (SKETCH + 1) * 2 // 3
        assert clipped.messages - without.messages == 2 * 2


@pytest.mark.parametrize("size", [1e-30, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_spikes_of_any_height_are_clipped(size, dtype):
    """Far beyond what the first exchange has room for, and on one rank alone."""
    given = [gradient(rank, 0, N).astype(dtype) * dtype(size if rank == 1 else 1e-35) for rank in range(3)]
    for factor in factors(given, 1e-33):
        assert factor * norm_of_mean(given) == pytest.approx(1e-33, rel=5 * ERROR)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_mean_without_a_norm_is_not_clipped(bad, ranks):
    """On no rank, so that NaN and Inf still show in the sum."""
    given = [gradient(rank, 0, N).astype(np.float64) for rank in range(ranks)]
    given[-1][7] = bad
    assert factors(given, 0.1) == [1.0] * ranks


def test_norm_of_a_long_vector_is_added_up_in_float64():
    x = np.full(1_000_003, 1e25, np.float32)  # its square is beyond float32
    assert l2_norm(x) == pytest.approx(float(x[0]) * 1_000_003**0.5, rel=1e-9)
