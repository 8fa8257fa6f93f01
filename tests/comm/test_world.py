"""What only `World` has: the scheduler, deadlocks and mismatches by name, and a thousand ranks."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from sparse_mpi.comm.world import DeadlockError, MismatchError, World

ONE = np.ones(1)


def test_every_run_counts_anew():
    world = World(3)
    first, second = (world.run(lambda comm: [comm.allgather(ONE), comm.traffic][1]) for _ in range(2))
    assert [t.sent for t in first] == [t.sent for t in second] == [16, 16, 16]


def test_sums_are_taken_in_rank_order():
    gradients = [np.float32([1e8]), np.float32([1]), np.float32([-1e8]), np.float32([1])]
    in_order = ((gradients[0] + gradients[1]) + gradients[2]) + gradients[3]
    for total in World(4).run(lambda comm: comm.allreduce(gradients[comm.rank])):
        assert total.tobytes() == in_order.tobytes()


def test_ranks_do_not_share_what_they_may_write():
    """And what they share, they may not write."""

    def body(comm):
        each = np.ones(comm.size, int)
        _, counts = comm.allgatherv(ONE)
        came, came_counts = comm.alltoallv(np.ones(comm.size), each)
        around = comm.sendrecv(ONE, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size)
        return counts, came, came_counts, comm.allreduce(ONE), comm.bcast(ONE), around

    for results in zip(*World(3).run(body), strict=True):
        for rank, result in enumerate(results):
            assert result.flags.writeable
            assert not any(np.shares_memory(result, other) for other in results[:rank])


def test_gathered_arrays_are_read_only():
    for gathered, joined in World(3).run(lambda comm: (comm.allgather(ONE), comm.allgatherv(ONE)[0])):
        assert not gathered.flags.writeable and not joined.flags.writeable


def receive_from_the_next(comm):
    comm.sendrecv(ONE, None, (comm.rank + 1) % comm.size)


def at_rank_2(call, otherwise):
    return lambda comm: (call if comm.rank == 2 else otherwise)(comm)


def waiting_in_parts(comm):
    part = comm.split(comm.rank % 2)
    (comm if comm.rank == 2 else part).barrier()


def unanswered_in_parts(comm):
    part, receiving = comm.split(comm.rank % 2), comm.rank % 2
    part.sendrecv(ONE, None if receiving else 1 - part.rank, 1 - part.rank if receiving else None)


def odd(call):
    """``call(part)`` on ranks 1 and 3, which form a part."""

    def body(comm):
        part = comm.split(comm.rank % 2)
        return call(part) if comm.rank % 2 else None

    return body


@pytest.mark.parametrize(
    ("body", "report"),
    [
        (
            lambda comm: comm.rank == 2 or comm.barrier(),
            "ranks 0-1, 3 waiting for rank 2 in barrier(); rank 2 returned",
        ),
        (
            receive_from_the_next,
            "rank 0 waiting for a message from rank 1; rank 1 waiting for a message from rank 2; "
            "rank 2 waiting for a message from rank 3; rank 3 waiting for a message from rank 0",
        ),
        (
            lambda comm: comm.sendrecv(ONE, 3 if comm.rank == 0 else None, None),
            "rank 0 waiting for rank 3 to take its message; ranks 1-3 returned",
        ),
        (
            lambda comm: comm.allreduce(ONE, "max") if comm.rank else comm.sendrecv(ONE, None, 1),
            "rank 0 waiting for a message from rank 1; ranks 1-3 waiting for rank 0 in allreduce(float64 (1), max)",
        ),
        (
            at_rank_2(lambda comm: comm.barrier(), lambda comm: comm.allgather(ONE)),
            "rank 2 called barrier(), ranks 0-1 called allgather(float64 (1))",
        ),
        (
            at_rank_2(lambda comm: comm.allreduce(np.ones(2, "f4")), lambda comm: comm.allreduce(np.ones(2))),
            "rank 2 called allreduce(float32 (2), sum), ranks 0-1 called allreduce(float64 (2), sum)",
        ),
        (
            at_rank_2(lambda comm: comm.allreduce(ONE, "max"), lambda comm: comm.allreduce(ONE)),
            "rank 2 called allreduce(float64 (1), max), ranks 0-1 called allreduce(float64 (1), sum)",
        ),
        (
            at_rank_2(lambda comm: comm.bcast(ONE, 1), lambda comm: comm.bcast(ONE, 0)),
            "rank 2 called bcast(float64 (n), root=1), ranks 0-1 called bcast(float64 (n), root=0)",
        ),
        (
            at_rank_2(lambda comm: comm.allgatherv(np.ones((1, 3))), lambda comm: comm.allgatherv(ONE)),
            "rank 2 called allgatherv(float64 (n, 3)), ranks 0-1 called allgatherv(float64 (n))",
        ),
        (
            lambda comm: comm.allgatherv(ONE, [1, 1, 1 + (comm.rank == 1), 1]),
            "allgatherv: counts on rank 1 are not the rows the ranks send, [1 1 1 1]",
        ),
        (
            lambda comm: comm.alltoallv(np.ones(4), [1, 1, 1, 1], [1, 1, 1, 1 + (comm.rank == 1)]),
            "alltoallv: rank 1 expected [1 1 1 2] rows, but the ranks send it [1 1 1 1]",
        ),
        (
            lambda comm: comm.sendrecv(np.ones((1, 1 + comm.rank)), (comm.rank + 1) % 4, (comm.rank - 1) % 4),
            "rank 0 sent rows(float64 (n, 1)) to rank 1, which expects rows(float64 (n, 2))",
        ),
        (
            waiting_in_parts,
            "rank 0 waiting for rank 2 in barrier() among ranks 0, 2; "
            "rank 2 waiting for ranks 0-1, 3 in barrier(); ranks 1, 3 returned",
        ),
        (
            unanswered_in_parts,
            "rank 0 waiting for rank 2 to take its message; rank 1 waiting for a message from rank 3; "
            "rank 2 waiting for rank 0 to take its message; rank 3 waiting for a message from rank 1",
        ),
        (
            lambda comm: comm.split(0) if comm.rank < 3 else comm.barrier(),
            "rank 3 called barrier(), ranks 0-2 called split()",
        ),
        (
            odd(lambda part: part.barrier() if part.rank else part.allreduce(ONE)),
            "rank 1 called allreduce(float64 (1), sum), rank 3 called barrier()",
        ),
        (
            odd(lambda part: part.sendrecv(np.ones((1, 1 + part.rank)), 1 - part.rank, 1 - part.rank)),
            "rank 3 sent rows(float64 (n, 2)) to rank 1, which expects rows(float64 (n, 1))",
        ),
    ],
)
def test_a_deadlock_names_who_waits_for_what_and_a_mismatch_the_calls(body, report):
    """By the ranks of the world, in a part of it too."""
    with pytest.raises((DeadlockError, MismatchError)) as caught:
        World(4).run(body)
    waits = isinstance(caught.value, DeadlockError)
    assert str(caught.value) == (f"deadlock: {report}" if waits else report) and waits == (" waiting for " in report)


def test_a_long_deadlock_report_is_cut():
    with pytest.raises(DeadlockError, match="rank 7 waiting for a message from rank 8; and 92 more$"):
        World(100).run(receive_from_the_next)


class OwnError(Exception):
    pass


def test_the_error_of_the_first_rank_that_failed_comes_back():
    before = threading.active_count()
    error = OwnError("gradient lost")
    stopped = []

    def body(comm):
        try:
            comm.barrier()
            if comm.rank == 1:
                raise error
            comm.barrier()
        finally:
            stopped.append(comm.rank)

    with pytest.raises(OwnError) as caught:
        World(4).run(body)
    assert caught.value is error
    if sys.version_info >= (3, 11):
        assert error.__notes__ == ["raised on rank 1 of 4"]
    assert sorted(stopped) == [0, 1, 2, 3]
    assert threading.active_count() == before


def test_a_rank_of_a_failed_run_cannot_go_on_communicating():
    reached = []

    def body(comm):
        if comm.rank == 2:
            raise OwnError
        try:
            comm.barrier()
        finally:
            comm.allgather(ONE)
            reached.append(comm.rank)

    with pytest.raises(OwnError):
        World(3).run(body)
    assert reached == []


def test_a_thousand_ranks():
    size = 1024

    def body(comm):
        send = np.repeat(np.arange(size), 1 + (np.arange(size) + comm.rank) % 2)
        came, counts = comm.alltoallv(send, 1 + (np.arange(size) + comm.rank) % 2)
        assert (came == comm.rank).all()
        total = comm.allreduce(np.full(32, comm.rank))
        gathered, _ = comm.allgatherv(counts[:1])
        return int(counts.sum()), int(total[0]), len(gathered), int(comm.allgather(np.array(comm.rank))[-1])

    for rows, total, gathered, last in World(size).run(body):
        assert (rows, total, gathered, last) == (1536, 1023 * 512, 1024, 1023)
