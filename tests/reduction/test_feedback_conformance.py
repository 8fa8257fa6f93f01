"""What every feedback rule must do beside obeying the laws, whatever it remembers: see also `test_memories`."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS, SparseAllreduce, World
from sparse_mpi.feedback.base import whole_state
from sparse_mpi.sparse import Layout

from ..algorithms.conformance import dense_of
from .rules import KINDS

LAYOUT = Layout.of([(12, 10), (7,), (), (9, 8)])
N, K = LAYOUT.size, 12

few_ranks = pytest.mark.ranks(1, 3)
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
every_rule = pytest.mark.parametrize("kind", KINDS)


def vector(rank: int, step: int) -> np.ndarray:
    """Small whole numbers, whose sums are exact in float32."""
    return np.random.default_rng([step, rank]).integers(-50, 50, N).astype(np.float32)


def reducer_of(comm, kind, name="oktopk", **options) -> SparseAllreduce:
    return SparseAllreduce(LAYOUT, k=K, comm=comm, algorithm=name, feedback=KINDS[kind], **options)


def remembered(reducer) -> dict[str, np.ndarray]:
    return whole_state(reducer.feedback)


@pytest.mark.ranks(1, 3, 4)
@every_rule
def test_other_numbers_of_ranks_remember_together_what_the_old_ones_did(ranks, kind):
    def saved(comm):
        reducer = reducer_of(comm, kind)
        for step in range(4):
            reducer.step(vector(comm.rank, step))
        return reducer.state_dict()

    states = World(2).run(saved)

    def body(comm):
        reducer = reducer_of(comm, kind)
        reducer.take_over(states[comm.rank :: comm.size], 2)
        own = {name: array.copy() for name, array in remembered(reducer).items()}
        reducer.step(vector(comm.rank, 4), check=True)
        return own, reducer.feedback.state(replicated=True)

    taken = [own for own, _ in ranks.run(body)]
    rule = KINDS[kind].start(LAYOUT, 2)
    for name in rule.state():
        np.testing.assert_allclose(sum(own[name] for own in taken), sum(s[name] for s in states), rtol=1e-5, atol=1e-3)
    for name in rule.state(replicated=True):
        assert all(own[name].tobytes() == states[0][name].tobytes() for own in taken)


@few_ranks
@every_rule
def test_what_is_common_is_the_same_on_all_ranks_and_results_are_copies(ranks, kind):
    def body(comm):
        reducer = reducer_of(comm, kind)
        for step in range(4):
            total = dense_of(reducer.step(vector(comm.rank, step)))
            before = {name: array.copy() for name, array in remembered(reducer).items()}
            total[...] = -1
            assert all(array.tobytes() == before[name].tobytes() for name, array in remembered(reducer).items())
        return {name: array.tobytes() for name, array in reducer.feedback.state(replicated=True).items()}

    common = ranks.run(body)
    assert all(own == common[0] for own in common)


@few_ranks
@every_algorithm
@every_rule
@pytest.mark.thin(2)
def test_steps_that_are_dense_share_what_is_remembered(ranks, name, kind):
    """A dense warm-up, sparse steps, one of more entries, and a dense one again: both laws hold in each."""

    def body(comm):
        reducer = reducer_of(comm, kind, name)
        for step, (dense, density) in enumerate([(True, None), (False, None), (False, 0.3), (True, None)]):
            reducer.step(vector(comm.rank, step), density=density, dense=dense, check=True)

    ranks.run(body)


@few_ranks
@every_rule
def test_what_is_owed_is_flushed_or_there_is_nothing_to_flush(ranks, kind):
    def body(comm):
        reducer = reducer_of(comm, kind)
        for step in range(3):
            reducer.step(vector(comm.rank, step))
        before = {name: array.tobytes() for name, array in remembered(reducer).items()}
        if KINDS[kind].traits.defers:
            owed, flushed = reducer.residual.copy(), reducer.flush(check=True)
            if "velocity" in before:
                assert remembered(reducer)["velocity"].tobytes() == before["velocity"]
            return owed, flushed
        with pytest.raises(ValueError, match="feedback must owe what was not sent for that to be flushed"):
            reducer.flush()
        assert before == {name: array.tobytes() for name, array in remembered(reducer).items()}
        return None, None

    results = ranks.run(body)
    if KINDS[kind].traits.defers:
        owed = np.sum([owed for owed, _ in results], axis=0)
        for _, flushed in results:
            np.testing.assert_allclose(flushed, owed, rtol=1e-5, atol=1e-3)


@every_rule
@pytest.mark.against_world
def test_world_equals_mpi(ranks, kind):
    def body(comm):
        reducer = reducer_of(comm, kind)
        totals = [dense_of(reducer.step(vector(comm.rank, step))).tobytes() for step in range(4)]
        return totals, {name: array.tobytes() for name, array in remembered(reducer).items()}

    assert ranks.run(body) == World(ranks.size).run(body)
