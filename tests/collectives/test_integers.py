"""Sums and products of integers are exact in the type that was given, or all ranks raise: none wraps around."""

from __future__ import annotations

import operator
from functools import reduce

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi import SparseVector, World, collectives
from sparse_mpi.collectives.algorithms import ALGORITHMS

TYPES = [f"{kind}{width}" for kind in "iu" for width in (1, 2, 4, 8)]
KEYS = np.arange(3)
# One value a rank at key 1, as data of each kind
MAKE = {
    "pair": lambda value: (KEYS, np.array([0, value, 1 * (value != 0)], getattr(value, "dtype", None))),
    "twice": lambda value: (np.array([1, 1]), np.array([value, 0], value.dtype)),
    "csr": lambda value: sp.csr_array(np.array([[0, value]], value.dtype)),
    "vector": lambda value: SparseVector(np.array([1]), np.array([value]), 3),
    "torch": lambda value: torch.from_numpy(np.array([0, value], value.dtype)).to_sparse(),
    "dict": lambda value: {1: int(value)},
}
DOORS = {
    "reduce": lambda x, op, comm: collectives.reduce(x, comm.size - 1, op, comm),
    "reduce_scatter": collectives.reduce_scatter,
    **{way: lambda x, op, comm, way=way: collectives.allreduce(x, op, comm, algorithm=way) for way in ALGORITHMS},
    "auto": collectives.allreduce,
}


def persistent(x, op, comm):
    request = collectives.allreduce_init(x[0], None, op, comm, dtype=x[1].dtype)
    request.start(x[1])
    return x[0], request.wait()


def numbers(kind):
    """Numbers of a type, many of them small or at its ends."""
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    near = st.sampled_from([low, low + 1, high, high - 1, high // 2, high // 2 + 1, low // 2])
    return st.lists(st.integers(max(low, -3), 3) | near | st.integers(low, high), min_size=1, max_size=5)


@given(st.data(), st.sampled_from(TYPES), st.sampled_from(["sum", "prod"]), st.sampled_from([*DOORS, "persistent"]))
def test_results_are_exact_or_refused_on_all_ranks(data, kind, op, door):
    values = data.draw(numbers(kind))
    exact = reduce(operator.add if op == "sum" else operator.mul, values)
    fits = np.iinfo(kind).min <= exact <= np.iinfo(kind).max
    call = DOORS.get(door, persistent)

    def body(comm):
        x = KEYS, np.array([0, values[comm.rank], 1], kind)
        if fits:
            return call(x, op, comm)
        with pytest.raises(ValueError, match=rf"results of op=.* must be in \[{np.iinfo(kind).min}"):
            call(x, op, comm)

    found = [each for each in World(len(values)).run(body) if each is not None]
    if fits:
        found = [sums[keys.tolist().index(1)] for keys, sums in found if 1 in keys]
        assert found and all(each == exact and each.dtype == kind for each in found)


@pytest.mark.parametrize("what", MAKE)
@pytest.mark.parametrize("kind", ["u1", "i4", "i8"])
def test_whatever_holds_the_counts(what, kind):
    kind = "i8" if what == "dict" else "u1" if what == "torch" and kind == "u1" else kind
    value = np.array(np.iinfo(kind).max // 3 * 2, kind)[()]

    def body(comm):
        good = collectives.allreduce(MAKE[what](value if comm.rank == 1 else value * 0), comm=comm)
        with pytest.raises(ValueError, match="results of op="):
            collectives.allreduce(MAKE[what](value), comm=comm)
        return good

    World(2).run(body)


@pytest.mark.parametrize("call", [collectives.allreduce, collectives.allgather, collectives.reduce_scatter])
def test_equal_keys_of_one_rank_are_no_other(call):
    x = np.array([4, 4]), np.array([200, 200], np.uint8)

    def body(comm):
        with pytest.raises(ValueError, match="results of op='add' must be in .* got 400; convert"):
            call(x if comm.rank == 1 else (x[0][:1], x[1][:1]), comm=comm)
        return comm.traffic.sent

    assert World(3).run(body) == [0] * 3


def test_what_comes_back_into_the_range_and_operations_that_stay_there():
    mine = [100, 100, -100]

    def body(comm):
        x = np.array([7]), np.array([mine[comm.rank]], np.int8)
        return [int(collectives.allreduce(x, op, comm)[1][0]) for op in ("sum", "max", "min", "xor", np.gcd)]

    assert World(3).run(body) == [[100, 100, -100, -100, 100]] * 3
