"""Persistent collectives: round after round what an allreduce of the same keys gives, and no byte more than needed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi import SparseAllreduce, World, collectives

NEAR, FAR = st.integers(-30, 30), st.integers(-(2**63), 2**63 - 1)
KEYS = st.lists(NEAR | FAR, max_size=15, unique=True)
RANKS = st.lists(
    st.tuples(KEYS, st.one_of(st.none(), st.lists(st.integers(-40, 40) | FAR, max_size=20))), min_size=1, max_size=8
)


def values_of(keys, rank, step, shape, dtype):
    return (np.random.default_rng([rank, step]).standard_normal((len(keys), *shape)) * 9).astype(dtype)


def body_of(sets, op, shape, dtype):
    def body(comm):
        keys, needed = (None if part is None else np.array(part, np.int64) for part in sets[comm.rank])
        request = collectives.allreduce_init(keys, needed, op, comm, dtype=dtype, shape=shape)
        rows = keys if needed is None else needed
        for step in range(2):
            mine = values_of(keys, comm.rank, step, shape, dtype)
            request.start(mine)
            result = request.wait()
            whole = collectives.allreduce((keys, mine), op, comm, algorithm="split")
            places = np.searchsorted(whole[0], rows)
            there = np.isin(rows, whole[0])
            assert (request.found == there).all() and result.shape == (len(rows), *shape) and result.dtype == dtype
            assert result[there].tobytes() == whole[1][places[there]].tobytes() and not result[~there].any()

    return body


@given(RANKS, st.sampled_from(["sum", "max"]), st.sampled_from([(), (3,)]), st.sampled_from([np.float32, np.int64]))
def test_a_round_gives_each_rank_what_it_needs_of_the_allreduce(sets, op, shape, dtype):
    World(len(sets)).run(body_of(sets, op, shape, dtype))


@pytest.mark.ranks(1, 3)
def test_what_is_reduced_meanwhile_waits_its_turn(ranks):
    def body(comm):
        request, reducer = collectives.allreduce_init(np.arange(1000), comm=comm), SparseAllreduce(100, k=10, comm=comm)
        for step in range(5):
            request.start(np.full(1000, step + 1.0))
            between = collectives.allreduce({comm.rank: 1, 7: 1}, comm=comm)
            reducer.step(np.arange(100, dtype=np.float32))
            assert between[7] >= comm.size and (request.wait() == comm.size * (step + 1)).all()

    ranks.run(body)


def test_a_round_sends_values_alone_and_only_to_those_who_need_them():
    """Each rank has 100 keys, needs 10 of its neighbour's, and gets these."""
    ranks, each, needs = 6, 100, 10

    def body(comm):
        first = each * ((comm.rank + 1) % comm.size)
        keys, needed = np.arange(each) + each * comm.rank, np.arange(needs) + first
        request = collectives.allreduce_init(keys, needed, comm=comm)
        before = comm.traffic.copy()
        request.start(np.ones(each))
        assert request.wait().tolist() == [1] * needs
        return comm.traffic - before

    spent = World(ranks).run(body)
    assert sum(one.sent for one in spent) <= 8 * ranks * (each + needs)
    assert all(one.control <= 100 for one in spent)


def test_bad_values_and_calls_are_refused_on_all_ranks():
    def body(comm):
        request = collectives.allreduce_init(np.array([1, 2]), comm=comm, dtype=np.float64)
        with pytest.raises(RuntimeError, match="call start"):
            request.wait()
        request.start(np.ones(3 if comm.rank == 1 else 2))
        with pytest.raises(ValueError, match=r"values must have shape \(2,\), a value for each key, got \(3,\)"):
            request.wait()
        request.start(np.ones(2, np.float32 if comm.rank == 0 else np.float64))
        with pytest.raises(
            (TypeError, ValueError), match="must be float64, as dtype= of allreduce_init says, got float32; .*float64"
        ):
            request.wait()
        request.start(np.ones(2))
        with pytest.raises(RuntimeError, match="call wait"):
            request.start(np.ones(2))
        assert request.wait().tolist() == [3, 3]

    World(3).run(body)


@pytest.mark.parametrize("kind", ["f4", ">i8", "c8", "?"])
def test_the_first_values_have_the_type(kind):
    def body(comm):
        request = collectives.allreduce_init(np.array([1, 2]), comm=comm)
        with pytest.raises((TypeError, ValueError), match="values must be bool, integers.*got dtype <U1; convert"):
            request.start(np.array(["a", "b"]) if comm.rank == 1 else np.ones(2))
            request.wait()
        with pytest.raises(ValueError, match="(?s)dtype=float32.*dtype=float64"):
            request.start(np.ones(2, "f8" if comm.rank == 1 else "f4"))
            request.wait()
        for _ in range(2):  # a failed round has decided nothing
            request.start(np.ones(2, kind))
            found = request.wait()
            assert found.dtype == np.dtype(kind).newbyteorder("=") and (found == (1 if kind == "?" else 3)).all()
        with pytest.raises(TypeError, match="as in the first round, got float64; convert them by astype"):
            request.start(np.ones(2))
            request.wait()
        request = collectives.allreduce_init(np.array([1, 2]), op="and", comm=comm)
        with pytest.raises(TypeError, match="op must combine values of float64"):
            request.start(np.ones(2))
            request.wait()

    World(3).run(body)


def test_after_the_first_round_agreement_may_be_spared():
    def body(comm, bad=False):
        request, control = collectives.allreduce_init(np.array([1, 2]), comm=comm, validate="first"), []
        for step in range(3):
            before = comm.traffic.control
            request.start(np.ones(3 if bad and step and comm.rank == 1 else 2))
            assert request.wait().tolist() == [3, 3]
            control.append(comm.traffic.control - before)
        return control

    for control in World(3).run(body):
        assert control[0] > 0 and control[1:] == [0, 0]
    with pytest.raises(ValueError, match=r"values must have shape \(2,\)"):  # the job ends
        World(3).run(lambda comm: body(comm, bad=True))
