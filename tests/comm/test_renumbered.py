"""A communicator whose ranks are numbered from another one on, and what users keep on a communicator."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import host_leader, hosts_of
from sparse_mpi.comm.forwarding import Renumbered
from sparse_mpi.comm.world import World
from sparse_mpi_bench.analysis.recording import RecordingComm


def every_call(comm, number):
    """What each call returns to the rank that is ``number`` in ``comm``; every rank sends rows of its own."""
    size = comm.size
    rows = np.arange(number + 1) + 100 * number
    counts = np.arange(size) + number % 2
    return [
        comm.sendrecv(rows, (number + 1) % size, (number - 1) % size),
        comm.allgather(np.array([number])),
        *comm.allgatherv(rows),
        *comm.allgatherv(rows, counts=np.arange(size) + 1),
        *comm.alltoallv(1000 * number + np.arange(counts.sum()), counts),
        *comm.alltoallv(1000 * number + np.arange(size), np.ones(size), expected=np.ones(size)),
        comm.allreduce(np.array([number])),
        comm.bcast(rows, size - 1),
    ]


@pytest.mark.parametrize("first", [1, 2, 5, -1])
def test_calls_are_those_of_ranks_that_stand_elsewhere(ranks, first):

    def body(comm):
        turned = Renumbered(comm, first)
        assert isinstance(turned, Comm) and turned.size == comm.size
        before = comm.traffic.copy()
        results = every_call(turned, turned.rank)
        assert turned.traffic is comm.traffic and (comm.traffic - before).messages >= comm.size > 1 or comm.size == 1
        return turned.rank, results

    plain = ranks.run(lambda comm: every_call(comm, comm.rank))
    for rank, (number, results) in enumerate(ranks.run(body)):
        assert number == (rank - first) % ranks.size
        for result, expected in zip(results, plain[number], strict=True):
            assert result.dtype == expected.dtype and result.tolist() == expected.tolist()


def test_hosts_are_in_the_order_of_the_ranks_here():
    hosts = World(4, per_node=2).run(lambda comm: hosts_of(Renumbered(comm, 1)).tolist())
    assert hosts == [[0, 1, 1, 0]] * 4


@pytest.mark.ranks(least=2)
def test_parts_and_duplicates_keep_the_order(ranks):
    def body(comm):
        turned = Renumbered(comm, 1)
        odd = turned.split(turned.rank % 2)
        return turned.rank, turned.duplicate().rank, Renumbered(turned, 1).rank, odd.rank, odd.size, host_leader(turned)

    size = ranks.size
    for rank, (turned, duplicate, twice, part, among, node) in enumerate(ranks.run(body)):
        assert turned == duplicate == (rank - 1) % size and twice == (rank - 2) % size
        assert part == turned // 2 and among == len(range(turned % 2, size, 2))
        assert node == 0


def test_what_is_recorded_does_not_name_the_view(ranks):
    def body(comm):
        recording = RecordingComm(comm)
        every_call(Renumbered(recording, 1), Renumbered(recording, 1).rank)
        return {call.where for call in recording.record}

    assert ranks.run(body) == [{"test_renumbered.every_call"}] * ranks.size


def test_attributes_belong_to_one_communicator(ranks):
    def body(comm):
        one = comm.duplicate()
        one.attributes["key"] = "kept"
        others = [one.duplicate(), Renumbered(one, 1), one.split(0), RecordingComm(one)]
        return one.attributes["key"], [other.attributes for other in others]

    assert ranks.run(body) == [("kept", [{}] * 4)] * ranks.size


def test_something_with_traffic_alone_is_no_comm():
    assert not isinstance(SimpleNamespace(traffic=None), Comm)
