"""Every operation of the transport, on `World` and on MPI: what arrives. `NullComm` and `as_comm`."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sparse_mpi.comm import NullComm, as_comm
from sparse_mpi.comm.mpi import MPIComm
from sparse_mpi.testing import check_transport
from sparse_mpi.testing.checking_transports import TALKS

from .on_device import OnDevice

ROW_SHAPES = pytest.mark.parametrize("trailing", [(), (3,), (2, 2)], ids=str)
DTYPES = pytest.mark.parametrize("dtype", ["uint8", "float16", "int64", "float64"])


def rows(source: int, dest: int) -> int:
    """How many rows ``source`` has for ``dest``: uneven, a third of them none."""
    return (3 * source + 5 * dest) % 3 * (1 + source)


def part(source: int, dest: int, trailing: tuple[int, ...] = (), dtype: str = "float64") -> np.ndarray:
    """The rows ``source`` has for ``dest``, which tell where they are from."""
    shape = (rows(source, dest), *trailing)
    return (np.arange(np.prod(shape)).reshape(shape) % 5 + 10 * source + dest).astype(dtype)


def parts(source: int, size: int, trailing: tuple[int, ...] = (), dtype: str = "float64") -> np.ndarray:
    return np.concatenate([part(source, dest, trailing, dtype) for dest in range(size)])


def sends(source: int, size: int) -> np.ndarray:
    return np.array([rows(source, dest) for dest in range(size)])


def arrives(dest: int, size: int) -> np.ndarray:
    return np.array([rows(source, dest) for source in range(size)])


def assert_same(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected, strict=True)


@ROW_SHAPES
@DTYPES
def test_allgather(ranks, trailing, dtype):
    def body(comm):
        return comm.allgather(np.full(trailing, comm.rank, dtype))

    expected = np.stack([np.full(trailing, rank, dtype) for rank in range(ranks.size)])
    for gathered in ranks.run(body):
        assert_same(gathered, expected)


@pytest.mark.parametrize("known", [False, True])
@ROW_SHAPES
@DTYPES
def test_allgatherv(ranks, trailing, dtype, known):
    counts = sends(0, ranks.size) if ranks.size > 2 else np.arange(ranks.size)

    def own(rank):
        return np.full((counts[rank], *trailing), rank + 1, dtype)

    expected = np.concatenate([own(rank) for rank in range(ranks.size)])
    for gathered, came in ranks.run(lambda comm: comm.allgatherv(own(comm.rank), counts if known else None)):
        assert_same(gathered, expected)
        assert_same(came, counts)


@pytest.mark.parametrize("known", [False, True])
@ROW_SHAPES
@DTYPES
def test_alltoallv(ranks, trailing, dtype, known):
    size = ranks.size

    def body(comm):
        expected = arrives(comm.rank, size) if known else None
        return comm.alltoallv(parts(comm.rank, size, trailing, dtype), sends(comm.rank, size), expected)

    for rank, (came, counts) in enumerate(ranks.run(body)):
        assert_same(came, np.concatenate([part(source, rank, trailing, dtype) for source in range(size)]))
        assert_same(counts, arrives(rank, size))


@pytest.mark.parametrize("known", [False, True])
def test_alltoallv_of_nothing(ranks, known):
    nothing = np.zeros(ranks.size, int)
    for came, counts in ranks.run(lambda comm: comm.alltoallv(np.empty((0, 2)), nothing, nothing if known else None)):
        assert_same(came, np.empty((0, 2)))
        assert_same(counts, nothing)


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32", "float64"])
def test_allreduce(ranks, shape, dtype):
    def own(rank):
        return np.asarray(np.arange(np.prod(shape)).reshape(shape) % 4 + (rank * 7) % 5, dtype)

    gradients = [own(rank) for rank in range(ranks.size)]
    for total, largest in ranks.run(lambda comm: [comm.allreduce(own(comm.rank), op) for op in ("sum", "max")]):
        assert_same(total, np.asarray(np.sum(gradients, axis=0, dtype=dtype)))
        assert_same(largest, np.asarray(np.max(gradients, axis=0)))


@ROW_SHAPES
@pytest.mark.parametrize("count", [0, 4])
def test_bcast(ranks, trailing, count):
    def own(rank):
        return np.full((count, *trailing), rank, np.float32)

    def body(comm):
        prototype = np.empty((0, *trailing), np.float32)
        return [comm.bcast(own(root) if comm.rank == root else prototype, root=root) for root in range(comm.size)]

    for came in ranks.run(body):
        for root, gradient in enumerate(came):
            assert_same(gradient, own(root))


@ROW_SHAPES
@DTYPES
def test_sendrecv_around_the_ring(ranks, trailing, dtype):
    size = ranks.size

    def body(comm):
        after, before = (comm.rank + 1) % size, (comm.rank - 1) % size
        return comm.sendrecv(part(comm.rank, after, trailing, dtype), after, before)

    for rank, came in enumerate(ranks.run(body)):
        assert_same(came, part((rank - 1) % size, rank, trailing, dtype))


def test_sendrecv_one_way(ranks):
    """Every rank sends to rank 0 in turn: some only send, some only receive, some do neither."""

    def body(comm):
        came = []
        for source in range(comm.size):
            dest = 0 if comm.rank == source else None
            came.append(comm.sendrecv(part(comm.rank, 0), dest, source if comm.rank == 0 else None))
        return came

    for rank, came in enumerate(ranks.run(body)):
        for source, got in enumerate(came):
            if rank == 0:
                assert_same(got, part(source, 0))
            else:
                assert got is None


def test_order_of_memory_does_not_matter(ranks):
    def body(comm):
        turned = np.arange(6.0).reshape(2, 3).T + comm.rank
        strided = np.arange(8)[::2]
        return (
            comm.allgather(turned),
            comm.allgatherv(turned)[0],
            comm.allreduce(strided),
            comm.bcast(strided),
        )

    for gathered, joined, total, came in ranks.run(body):
        for rank in range(ranks.size):
            assert_same(gathered[rank], np.array([[0, 3], [1, 4], [2, 5.0]]) + rank)
            assert_same(joined[3 * rank : 3 * rank + 3], gathered[rank])
        assert_same(total, np.array([0, 2, 4, 6]) * ranks.size)
        assert_same(came, np.array([0, 2, 4, 6]))


def test_results_are_new_arrays(ranks):
    def body(comm):
        send = np.arange(comm.size, dtype=np.float64)
        each = np.ones(comm.size, int)
        results = [
            comm.sendrecv(send, comm.rank, comm.rank),
            comm.allgather(send),
            comm.allgatherv(send)[0],
            comm.alltoallv(send, each)[0],
            comm.alltoallv(send, each, each)[0],
            comm.allreduce(send),
            comm.bcast(send),
        ]
        return [np.shares_memory(send, result) for result in results]

    assert not np.any(ranks.run(body))


def assert_as_in_a_world(ranks, wrap=lambda comm: comm) -> None:
    """Every call, on parts and duplicates too."""
    wrapped = SimpleNamespace(size=ranks.size, run=lambda fn: ranks.run(lambda comm: fn(wrap(comm))))
    check_transport(lambda _: wrapped, replace(TALKS, ranks=(ranks.size,), examples=0, seeds=range(2)))


def test_long_messages_are_cut(ranks, monkeypatch):
    """The paths for more than 2^31 rows, with small limits."""
    monkeypatch.setattr("sparse_mpi.comm.making.CHUNK", 2)
    monkeypatch.setattr("sparse_mpi.comm.mpi.MAX_ROWS", 3)
    assert_as_in_a_world(ranks)


@pytest.mark.parametrize("chunk", [2, 2**30])
@pytest.mark.parametrize("aware", [False, True])
def test_device_arrays(ranks, device, monkeypatch, aware, chunk):
    """Through host memory, or over an MPI that takes device pointers; whole, or in pieces."""
    monkeypatch.setattr("sparse_mpi.comm.making.CHUNK", chunk)
    monkeypatch.setattr("sparse_mpi.comm.mpi.MAX_ROWS", chunk)

    def on_device(comm):
        return OnDevice(MPIComm(comm._comm, cuda_aware=aware) if isinstance(comm, MPIComm) else comm)

    assert_as_in_a_world(ranks, on_device)
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


def test_as_comm_leaves_a_comm_alone(ranks):
    def body(comm):
        return as_comm(comm) is comm

    assert all(ranks.run(body))


def test_abort_in_process_raises_the_error():
    with pytest.raises(KeyError, match="lost"):
        NullComm().job.abort(KeyError("lost"))
