"""What every transport shares, on `World`, on MPI and on `NullComm`: what is refused, and what traffic is.

What each call counts: `tests/bench/test_trace.py` for a `World`, `check_transport` for all others.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

from sparse_mpi.comm import NullComm, Traffic
from sparse_mpi.comm.world import World


def test_traffic_is_a_value():
    traffic = Traffic(1, 2, 3, 4, 5.0)
    kept = traffic.copy()
    assert traffic - Traffic(1, 1, 1, 1, 1.0) == Traffic(0, 1, 2, 3, 4.0)
    traffic.sent = 0
    assert (traffic, kept) == (Traffic(0, 2, 3, 4, 5.0), Traffic(1, 2, 3, 4, 5.0))
    assert traffic + kept == Traffic(1, 4, 6, 8, 10.0)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_null_comm_counts_as_if_all_had_moved(size):
    def body(comm):
        send = np.zeros(2 * comm.size)
        comm.sendrecv(send, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size)
        comm.allgather(send)
        comm.allgatherv(send)
        comm.alltoallv(send, [2] * comm.size)
        comm.allreduce(send)
        comm.bcast(send)
        comm.barrier()
        traffic = comm.traffic.copy()
        traffic.seconds = 0.0
        return traffic

    assert [body(NullComm(size, rank)) for rank in range(size)] == World(size).run(body)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda comm: comm.allreduce([1.0]), TypeError, "send must be a NumPy or CuPy array, got list"),
        (lambda comm: comm.allgather(np.array(["x"], object)), TypeError, "got dtype object"),
        (lambda comm: comm.allgatherv(np.float64(1) + np.zeros(())), TypeError, "send must be a NumPy"),
        (lambda comm: comm.allgatherv(np.array(1)), ValueError, "rows of at least one byte, got shape"),
        (lambda comm: comm.bcast(np.zeros((3, 0))), ValueError, "rows of at least one byte, got shape"),
        (lambda comm: comm.allreduce(np.zeros(2), "min"), ValueError, "op must be one of .*, got 'min'"),
        (lambda comm: comm.sendrecv(np.zeros(2), comm.size, None), ValueError, "dest must be a rank in"),
        (lambda comm: comm.sendrecv(np.zeros(2), None, -1), ValueError, "source must be a rank in .*got -1"),
        (lambda comm: comm.bcast(np.zeros(2), root=99), ValueError, "root must be a rank in .*got 99"),
        (lambda comm: comm.alltoallv(np.zeros(2), []), ValueError, "counts must hold the rows of"),
        (lambda comm: comm.alltoallv(np.zeros(2), [3] * comm.size), ValueError, "sum of counts must be"),
        (lambda comm: comm.alltoallv(np.zeros(7), None if 7 % comm.size else []), ValueError, "multiple|hold"),
        (lambda comm: comm.alltoallv(np.zeros(comm.size), expected=[1] * comm.size), ValueError, "counts must hold"),
        (
            lambda comm: comm.alltoallv(np.zeros(0), [-1] * comm.size),
            ValueError,
            "counts must be >= 0, got -1",
        ),
        (
            lambda comm: comm.alltoallv(np.zeros(comm.size), [1] * comm.size, [2] * comm.size),
            ValueError,
            r"expected\[rank\] must be counts\[rank\] \(1\), got 2",
        ),
        (lambda comm: comm.allgatherv(np.zeros(2), [3] * comm.size), ValueError, r"counts\[rank\] must be"),
    ],
)
@pytest.mark.ranks(1, 2)
def test_arguments_are_checked_before_anything_is_sent(ranks, call, error, message):
    with pytest.raises(error, match=message):
        ranks.run(call)
    ranks.run(lambda comm: comm.barrier())


@pytest.mark.parametrize("dtype", ["float16", "bool", "complex64", ">f4", "S3", "bfloat16"])
@pytest.mark.ranks(1, 2)
def test_allreduce_refuses_what_mpi_cannot_reduce(ranks, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    with pytest.raises(TypeError, match="which MPI can reduce, got .*; convert it first"):
        ranks.run(lambda comm: comm.allreduce(np.zeros(3, dtype)))


def test_two_threads_in_one_communicator_are_refused_in_words():
    inside, goes_on = threading.Event(), threading.Event()

    class Slow(NullComm):
        def _barrier(self):
            inside.set()
            goes_on.wait(240)

    comm = Slow(2)
    thread = threading.Thread(target=comm.barrier)
    thread.start()
    inside.wait(240)
    with pytest.raises(RuntimeError, match="another thread of this rank is in a call of comm.*Dup"):
        comm.allreduce(np.ones(3))
    comm.duplicate().allreduce(np.ones(3))
    goes_on.set()
    thread.join()
    assert comm.allreduce(np.ones(3)).tolist() == [2, 2, 2]
