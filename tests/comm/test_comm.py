"""Every operation of the transport, on `World` and on MPI: what arrives. `NullComm` and `as_comm`."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from sparse_mpi.comm import NullComm
from sparse_mpi.comm.mpi import MPIComm

from .laws import assert_as_in_a_world
from .on_device import OnDevice

ROW_SHAPES = pytest.mark.parametrize("trailing", [(), (3,), (2, 2)], ids=str)
assert_same = partial(np.testing.assert_array_equal, strict=True)  # in type and shape, too
COLORS = 1, 2, 3, 8  # numbers of groups that talk among themselves
DTYPES = pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", "float64"])


def rows(source: int, dest: int) -> int:
    """How many rows ``source`` has for ``dest``: uneven, a third of them none."""
    return (3 * source + 5 * dest) % 3 * (1 + source)


def part(source: int, dest: int, trailing: tuple[int, ...] = (), dtype: str = "float64") -> np.ndarray:
    """The rows ``source`` has for ``dest``, which tell where they are from."""
    shape = (rows(source, dest), *trailing)
    return (np.arange(np.prod(shape)).reshape(shape) % 5 + 10 * source + dest).astype(dtype)


def sends(source: int, size: int) -> np.ndarray:
    return np.array([rows(source, dest) for dest in range(size)])


def arrives(dest: int, size: int) -> np.ndarray:
    return np.array([rows(source, dest) for source in range(size)])


@ROW_SHAPES
@DTYPES
def test_what_every_call_returns(ranks, trailing, dtype):
    """Of arrays with strides and uneven parts, a third of them empty; in new memory. To the ranks of a colour, too."""

    def given(size):
        have = [[part(source, dest, trailing, dtype) for dest in range(size)] for source in range(size)]
        counts = np.array([sends(source, size) for source in range(size)])
        alike = [np.full((3, *trailing), 1 + rank, dtype) for rank in range(size)]
        return have, counts, [np.concatenate(row) for row in have], alike

    def calls(comm):
        me, size = comm.rank, comm.size
        have, counts, whole, alike = given(size)
        send, own = (np.repeat(each[me], 2, axis=0)[::2] for each in (whole, alike))
        found = [
            comm.allgather(own),
            *comm.allgatherv(send),
            *comm.allgatherv(send, counts.sum(axis=1)),
            *comm.alltoallv(send, counts[me]),
            *comm.alltoallv(send, counts[me], arrives(me, size)),
            *comm.alltoallv(np.repeat(own, 2 * size, axis=0)[::2]),
            comm.sendrecv(have[me][(me + 1) % size], (me + 1) % size, (me - 1) % size),
            comm.allreduce(own),
            comm.allreduce(own, "max"),
            *(comm.bcast(send if root == me else send[:0], root) for root in range(size)),
        ]
        assert not any(np.shares_memory(given, array) for given in (send, own) for array in found)
        return found, [
            comm.sendrecv(have[me][0], 0 if me == source else None, source if me == 0 else None)
            for source in range(size)
        ]

    def body(comm):
        own, found = np.array(comm.rank), []
        for group in (comm, *(comm.split(comm.rank % colors) for colors in COLORS[1:])):
            assert group.split(group.rank).allgather(own).tolist() == [comm.rank], "a part can be split again"
            found.append((group.rank, group.allgather(own).tolist(), *calls(group)))
        return found

    for rank, groups in enumerate(ranks.run(body)):
        for colors, (me, members, found, one_way) in zip(COLORS, groups, strict=True):
            assert members == list(range(rank % colors, ranks.size, colors)) and members[me] == rank
            have, counts, whole, alike = given(len(members))
            gathered, came = np.concatenate(whole), np.concatenate([row[me] for row in have])
            expected = [np.stack(alike), *[gathered, counts.sum(axis=1)] * 2, *[came, arrives(me, len(members))] * 2]
            expected += [np.concatenate(alike), np.full(len(members), 3)]
            expected += [have[me - 1][me], np.sum(alike, axis=0, dtype=dtype), alike[-1], *whole]
            for got, wanted in zip(found, expected, strict=True):
                assert_same(got, wanted)
            for got, row in zip(one_way, have, strict=True):
                if me == 0:
                    assert_same(got, row[0])
                else:
                    assert got is None


def test_long_messages_are_cut(ranks, monkeypatch):
    """The paths for more than 2^31 rows, with small limits."""
    monkeypatch.setattr("sparse_mpi.comm.making.CHUNK", 2)
    monkeypatch.setattr("sparse_mpi.comm.mpi.MAX_ROWS", 3)
    assert_as_in_a_world(ranks, seeds=range(2))


@pytest.mark.parametrize("chunk", [2, 2**30])
@pytest.mark.parametrize("aware", [False, True])
def test_device_arrays(ranks, device, monkeypatch, aware, chunk):
    """Through host memory, or over an MPI that takes device pointers; whole, or in pieces."""
    monkeypatch.setattr("sparse_mpi.comm.making.CHUNK", chunk)
    monkeypatch.setattr("sparse_mpi.comm.mpi.MAX_ROWS", chunk)

    def on_device(comm):
        return OnDevice(MPIComm(comm._comm, cuda_aware=aware) if isinstance(comm, MPIComm) else comm)

    assert_as_in_a_world(ranks, on_device, range(2))
    assert not device.early


@pytest.mark.parametrize("rank", [0, 2])
def test_null_comm_takes_every_rank_for_this_one(rank):
    comm, send = NullComm(3, rank), np.arange(6.0).reshape(3, 2)
    assert_same(comm.sendrecv(send, 1, 2), send)
    assert comm.sendrecv(send, 1, None) is None
    assert_same(comm.allgather(send), np.stack([send] * 3))
    assert_same(comm.allgatherv(send)[0], np.concatenate([send] * 3))
    assert_same(comm.allgatherv(send)[1], np.array([3, 3, 3]))
    came, counts = comm.alltoallv(send, [1, 0, 2])
    assert_same(came, np.concatenate([send[:1] if rank == 0 else send[1:]] * 3))
    assert_same(counts, np.full(3, 1 if rank == 0 else 2))
    assert_same(comm.allreduce(send), 3 * send)
    assert_same(comm.allreduce(send, "max"), send)
    assert_same(comm.bcast(send), send)
    comm.barrier()


def test_null_comm_refuses_a_rank_it_does_not_have():
    with pytest.raises(ValueError, match=r"rank must be a rank in \[0, 2\), got 2"):
        NullComm(2, 2)


def test_abort_in_process_raises_the_error():
    with pytest.raises(KeyError, match="lost"):
        NullComm().job.abort(KeyError("lost"))
