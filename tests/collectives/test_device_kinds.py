"""Sparse data on a device: what comes back, where, and what is refused.

Each body runs on a pretended device and, marked ``gpu``, for real.
"""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
import torch

from sparse_mpi import World, collectives

from .conftest import refused
from .kinds_on_a_device import HOST, KINDS, bytes_of, cupy, fetched, on_device, parts_of, put, scipy


@pytest.mark.thin(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["split", "doubling", "gather"])
def test_the_same_kind_comes_back_on_the_device_with_the_bytes_of_the_host(gpu, kind, way):
    def body(comm):
        x = HOST[kind](comm.rank)
        there = put(kind, x)
        before = bytes_of(there)
        expected = collectives.allreduce(x, comm=comm, algorithm=way)
        found = collectives.allreduce(there, comm=comm, algorithm=way)
        assert type(found) is type(there) and all(map(on_device, parts_of(found)))
        assert [type(part) for part in parts_of(found)] == [type(part) for part in parts_of(there)]
        assert isinstance(x, tuple) or (tuple(found.shape), found.dtype) == (tuple(there.shape), there.dtype)
        assert bytes_of(found) == bytes_of(expected) and bytes_of(there) == before
        assert gpu is None or not (gpu.early or gpu.races)

    World(3).run(body)


@pytest.mark.parametrize("kind", ["SparseVector", "pair", "csc", "torch blocks"])
def test_other_collectives_take_it_too(gpu, kind):
    def body(comm):
        x = HOST[kind](comm.rank)
        there = put(kind, x)
        scattered = [collectives.reduce_scatter(data, comm=comm) for data in (x, there)]
        reduced = [collectives.reduce(data, 1, comm=comm) for data in (x, there)]
        pairs = [scattered, *zip(*(collectives.allgather(data, comm) for data in (x, there)), strict=True)]
        if comm.rank == 1:
            pairs.append(reduced)
        else:
            assert reduced == [None, None]
        for expected, found in pairs:
            assert all(map(on_device, parts_of(found))) and bytes_of(found) == bytes_of(expected)

    World(3).run(body)


def test_tensors_that_are_views_and_empty_parts(gpu):
    def body(comm):
        keys = put("pair of tensors", (np.arange(20), np.arange(20.0) + 1j))
        views = keys[0][::2], keys[1][::2].conj()
        found = collectives.allreduce(views, comm=comm)
        assert fetched(found[0]).tolist() == list(range(0, 20, 2))
        assert fetched(found[1].resolve_conj()).tolist() == [3 * (i - 1j) for i in range(0, 20, 2)]
        strided = cupy().asarray(np.arange(20))[::2], cupy().asarray(np.arange(40.0).reshape(20, 2))[::2]
        found = collectives.allreduce(strided, comm=comm)
        assert fetched(found[1]).tolist() == [[6.0 * i, 6.0 * i + 3] for i in range(0, 20, 2)]
        for kind in ("pair", "pair of tensors"):
            nothing = put(kind, (np.empty(0, np.int64), np.empty((0, 3))))
            found = collectives.allreduce(nothing, comm=comm)
            assert all(map(on_device, found)) and tuple(found[1].shape) == (0, 3)

    World(3).run(body)


@pytest.mark.parametrize("kind", ["coo", "csr", "csc", "torch coo", "torch csr", "SparseVector"])
def test_an_index_outside_of_a_shape_is_refused_on_all_ranks(gpu, kind):
    def made(rank):
        x = put(kind, HOST[kind](0))
        if rank == 1:
            parts = {"coo": "row", "torch csr": "col_indices", "torch coo": "_indices"}
            indices = getattr(x, parts.get(kind, "indices"))
            (indices() if callable(indices) else indices)[..., 0] = 9999
        return x

    assert all(re.search("x must|of x must", text) for text in refused(made, 2))


def test_a_number_that_was_expanded_has_no_stride(gpu):
    def body(comm):
        one = put("pair of tensors", (np.zeros(()), np.ones(())))
        found = collectives.allreduce((one[0].long().expand(1), one[1].expand(1)), comm=comm)
        assert [fetched(part).tolist() for part in found] == [[0], [2.0]]

    World(2).run(body)


@pytest.mark.parametrize("torch_s", [False, True])
def test_a_persistent_round_takes_and_gives_device_arrays(gpu, torch_s):
    kind = "pair of tensors" if torch_s else "pair"

    def body(comm):
        keys, values = np.arange(10) + 5 * comm.rank, np.arange(20.0).reshape(10, 2)
        there = put(kind, (keys, values))
        requests = [collectives.allreduce_init(k, k[::2], comm=comm, shape=(2,)) for k in (keys, there[0])]
        for step in range(3):
            results = []
            for request, given in zip(requests, (values, there[1]), strict=True):
                request.start(given + step)
                results.append(request.wait())
            assert on_device(results[1]) and type(results[1]) is type(there[1])
            assert fetched(results[1]).tobytes() == results[0].tobytes()
        assert requests[1].found.all() and isinstance(requests[1].found, np.ndarray)

    World(3).run(body)


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_with_its_data_in_host_memory_is_an_error_on_all(gpu, kind):
    told = refused(lambda rank: HOST[kind](rank) if rank == 1 else put(kind, HOST[kind](rank)))
    assert all("memory=device" in text and "memory=host" in text and "rank 1" in text for text in told)


def test_a_round_with_values_in_other_memories_is_an_error_on_all(gpu):
    def body(comm):
        keys, values = put("pair", (np.arange(4), np.ones(4)))
        request = collectives.allreduce_init(keys, comm=comm)
        request.start(np.ones(4) if comm.rank == 1 else values)
        with pytest.raises(ValueError, match="(?s)memory=device.*rank 1: memory=host"):
            request.wait()
        request.start(values)
        assert fetched(request.wait()).tolist() == [3.0] * 4

    World(3).run(body)


@pytest.mark.parametrize("place", ["keys", "values", "values beside strings"])
def test_keys_here_and_values_there_are_refused(gpu, place):
    def mixed(rank):
        x = HOST["pair"](rank)
        there = put("pair", x)
        keys = x[0].astype(str) if place == "values beside strings" else x[0]
        return (there[0], x[1]) if place == "keys" else (keys, there[1])

    assert all(f"{place.split()[0]} of x must be in host memory as the rest is, got" in text for text in refused(mixed))


def test_other_matrices_and_types_are_refused(gpu):
    dia = sys.modules["cupyx.scipy.sparse"].dia_matrix(scipy.sparse.eye(3, format="dia", dtype=np.float32))
    assert all("a COO, CSR or CSC matrix of cupyx.scipy.sparse" in text for text in refused(lambda rank: dia))
    brain = torch.sparse_coo_tensor(torch.zeros(1, 1).long().cuda(), torch.ones(1).bfloat16().cuda(), (3,))
    assert all("got bfloat16; convert them with x.float" in text for text in refused(lambda rank: brain))
    assert all("a dense array is for sparse_allreduce" in text for text in refused(lambda rank: cupy().zeros(3)))


def test_without_cupy_tensors_on_a_device_are_refused(pretended, monkeypatch):
    for kind in ("torch coo", "torch csr", "pair of tensors"):
        monkeypatch.setitem(sys.modules, "cupy", None)
        told = refused(lambda rank, kind=kind: put(kind, HOST[kind](rank)))
        assert all("must be on the CPU where CuPy is not installed, got cuda:0" in text for text in told)
