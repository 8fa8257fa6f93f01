"""Collectives of sparse data against a serial answer: all kinds, operations and types, on any number of ranks."""

from __future__ import annotations

from collections import Counter

import numba
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from sparse_mpi import SparseVector, World, collectives
from sparse_mpi.collectives import inline, ownership
from sparse_mpi.collectives.algorithms import ALGORITHMS

from .kinds_on_a_device import host_tensor

WAYS = [*ALGORITHMS, "auto"]
DTYPES = [np.bool_, np.int8, np.uint16, np.int32, np.int64, np.uint64, np.float16, np.float32, np.float64]
DTYPES += [np.complex64, np.complex128]
WHOLE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
ORDERED = {"min": np.minimum, "max": np.maximum}
ANY = {"sum": np.add, "prod": np.multiply}


def operations(dtype):
    kind = np.dtype(dtype).kind
    return ANY | (WHOLE if kind in "biu" else {}) | ORDERED


def serial(pairs, op):
    """The answer by a dict, rank after rank; keys within a rank are distinct here."""
    found = {}
    for keys, values in pairs:
        for key, value in zip(keys.tolist(), values, strict=True):
            found[key] = op(found[key], value) if key in found else value
    keys = sorted(found)
    dtype = pairs[0][0].dtype
    return np.array(keys, dtype), np.array([found[key] for key in keys], pairs[0][1].dtype)


def drawn(rng, dtype, keys):
    """Distinct keys, and values of which sums need rounding where there are such."""
    numbers = rng.integers(0, 100, len(keys)) if np.dtype(dtype).kind in "biu" else rng.standard_normal(len(keys))
    values = numbers.astype(dtype)
    if np.dtype(dtype).kind == "c":
        values = values + (1j * rng.standard_normal(len(keys))).astype(dtype)
    return keys, values


def fits(mine, name, dtype):
    """Whether no sum or product leaves its type, which is an error."""
    if np.dtype(dtype).kind not in "iu" or name not in ANY:
        return True
    wide = [(keys, np.maximum(values, 1).astype(np.float64)) for keys, values in mine]
    return serial(wide, ANY[name])[1].max(initial=0) <= np.iinfo(dtype).max


KEYS = st.lists(st.lists(st.integers(-50, 50), max_size=20, unique=True), min_size=1, max_size=9)
FAR = st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6, unique=True), min_size=1, max_size=9)


@pytest.mark.parametrize("way", WAYS)
@given(st.one_of(KEYS, FAR), st.sampled_from(DTYPES), st.data())
def test_pairs_are_combined_as_one_rank_would(way, sets, dtype, data):
    name, op = data.draw(st.sampled_from(list(operations(dtype).items())))
    rng = np.random.default_rng(len(sets))
    mine = [drawn(rng, dtype, np.array(keys, np.int64)) for keys in sets]
    assume(fits(mine, name, dtype))
    with np.errstate(all="ignore"):
        found = World(len(sets)).run(lambda comm: collectives.allreduce(mine[comm.rank], name, comm, algorithm=way))
        expected = serial(mine, op)
    keys, values = found[0]
    assert all(k.tobytes() == keys.tobytes() and v.tobytes() == values.tobytes() for k, v in found)
    assert keys.dtype == np.int64 and values.dtype == dtype and keys.tolist() == expected[0].tolist()
    if way in ("split", "gather") or np.dtype(dtype).kind in "biu" or name in ORDERED:
        assert values.tobytes() == expected[1].tobytes()
    else:
        limit = 30 * np.finfo(dtype).eps
        np.testing.assert_allclose(values, expected[1], rtol=limit, atol=limit)


@pytest.mark.parametrize("layout", ["coo", "blocks", "csr"])
def test_torch_tensors_come_back_as_what_they_were(layout):
    mine = [host_tensor(rank, layout) for rank in range(4)]
    found = World(4).run(lambda comm: collectives.allreduce(mine[comm.rank], comm=comm))
    expected = sum(x.to_dense() for x in mine)
    for result in found:
        assert result.layout == mine[0].layout and result.dtype == mine[0].dtype
        assert torch.equal(result.to_dense(), expected)
    assert layout == "csr" or found[0].is_coalesced()
    assert layout != "blocks" or found[0].sparse_dim() == 1


@pytest.mark.usefixtures("apart")
def test_counters_are_added_up_and_take_the_type_that_holds_all():
    mine = [Counter({3: 2, -5: 1}), Counter(), Counter({3: 4, 2**40: 7}), Counter({9: 0.5})]
    found = World(4).run(lambda comm: collectives.allreduce(mine[comm.rank], comm=comm))
    assert found == [Counter({3: 6, -5: 1, 2**40: 7, 9: 0.5})] * 4 and type(found[0]) is Counter
    assert list(found[0]) == [-5, 3, 9, 2**40]
    assert World(3).run(lambda comm: collectives.allreduce({}, comm=comm)) == [{}] * 3
    flags = [{1: True}, {1: False, 2: False}]
    assert World(2).run(lambda comm: collectives.allreduce(flags[comm.rank], "or", comm)) == [{1: True, 2: False}] * 2


def test_sparse_vectors_and_unsigned_keys():
    vectors = [SparseVector(np.array([rank, 7], np.int32), np.array([1.5, 1], np.float32), 10) for rank in range(3)]
    result = World(3).run(lambda comm: collectives.allreduce(vectors[comm.rank], comm=comm))[2]
    assert isinstance(result, SparseVector) and result.indices.dtype == np.int32 and result.size == 10
    assert result.indices.tolist() == [0, 1, 2, 7] and result.values.tolist() == [1.5, 1.5, 1.5, 3]
    keys = np.array([2**64 - 1, 0, 2**63], np.uint64)
    found = World(3).run(
        lambda comm: collectives.allreduce((keys[: comm.rank + 1], np.ones(comm.rank + 1)), comm=comm)
    )[0]
    assert found[0].dtype == np.uint64 and found[0].tolist() == [0, 2**63, 2**64 - 1]
    assert found[1].tolist() == [2, 1, 3]


@pytest.mark.parametrize("way", WAYS)
def test_what_occurs_twice_is_combined_first_and_zeros_are_kept_or_dropped(way):
    def body(comm):
        x = np.array([4, 1, 4]), np.array([2, 1, 3]) * (-1) ** comm.rank
        return [collectives.allreduce(x, comm=comm, algorithm=way, zeros=zeros) for zeros in ("keep", "drop")]

    kept, dropped = World(2).run(body)[1]
    assert kept[0].tolist() == [1, 4] and kept[1].tolist() == [0, 0] and len(dropped[0]) == 0


def test_nan_is_as_in_numpy():
    mine = [(np.array([1, 2]), np.array([np.nan, 1.0])), (np.array([1, 2]), np.array([5.0, 2.0]))]
    for name in ("min", "max"):
        keys, values = World(2).run(lambda comm, name=name: collectives.allreduce(mine[comm.rank], name, comm))[0]
        assert np.isnan(values[0]) and values[1] == (1 if name == "min" else 2)


def test_a_compiled_function_of_the_user_s_is_an_operation():
    longer = numba.vectorize(["float64(float64, float64)"])(
        lambda a, b: a if abs(a) > abs(b) else b if b != -a else abs(a)
    )
    x = np.array([1, 2, 2]), np.array([1.0, -3.0, 2.0])
    mine = [x, (np.array([1, 2]), np.array([-5.0, 1.0]))]
    found = World(2).run(lambda comm: collectives.allreduce(mine[comm.rank], longer, comm))
    assert all((keys.tolist(), values.tolist()) == ([1, 2], [-5, -3]) for keys, values in found)


@pytest.mark.thin(1)
@pytest.mark.parametrize("packet", [1, 40, 200])
@pytest.mark.parametrize("ranks", range(1, 18))
def test_a_butterfly_of_stages_of_any_degree(monkeypatch, ranks, packet):
    monkeypatch.setattr(ownership, "PACKET", packet)
    mine = [drawn(np.random.default_rng(rank), np.int64, np.arange(rank % 3, 90, 1 + rank)) for rank in range(ranks)]
    found = World(ranks).run(lambda comm: collectives.allreduce(mine[comm.rank], comm=comm, algorithm="butterfly"))
    expected = serial(mine, np.add)
    for keys, values in found:
        assert keys.tolist() == expected[0].tolist() and values.tolist() == expected[1].tolist()


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("way", WAYS)
def test_results_are_the_caller_s_own(way):

    def body(comm):
        mine = np.array([1, 2]), np.array([0.5, 2.0])
        mine = mine if comm.rank == 1 else tuple(part[:0] for part in mine)
        found = [*collectives.allreduce(mine, comm=comm, algorithm=way), *sum(collectives.allgather(mine, comm), ())]
        for part in found:
            part += 1
        comm.barrier()
        return [part.tolist() for part in (*found, *mine)]

    for rank, found in enumerate(World(3).run(body)):
        given = [[1, 2], [0.5, 2]] if rank == 1 else [[], []]
        assert found == [[2, 3], [1.5, 3], [], [], [2, 3], [1.5, 3], [], [], *given]


@pytest.mark.ranks(1, 2, 3)
def test_the_network_is_measured_once_for_a_communicator(monkeypatch, ranks):
    monkeypatch.setattr(inline, "MOST", 0)  # where entries came with the arguments nobody asks for the network

    def body(comm):
        told = []
        for _ in range(2):
            collectives.allreduce({comm.rank: 1}, comm=comm, network="fitted", tell=told.append)
        return str(told[0]), told[0] == told[1]

    first, *others = ranks.run(body)
    assert first[1] and all(other == first for other in others)
