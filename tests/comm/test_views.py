"""Views of a communicator, and what users keep on one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from sparse_mpi.comm import Comm
from sparse_mpi.comm.forwarding import ForwardingComm
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


def test_what_is_recorded_does_not_name_the_view(ranks):
    def body(comm):
        recording = RecordingComm(comm)
        every_call(ForwardingComm(recording), comm.rank)
        return {call.where for call in recording.record}

    assert ranks.run(body) == [{"test_views.every_call"}] * ranks.size


def test_attributes_belong_to_one_communicator(ranks):
    def body(comm):
        one = comm.duplicate()
        one.attributes["key"] = "kept"
        others = [one.duplicate(), ForwardingComm(one), one.split(0), RecordingComm(one)]
        return one.attributes["key"], [other.attributes for other in others]

    assert ranks.run(body) == [("kept", [{}] * 4)] * ranks.size


def test_something_with_traffic_alone_is_no_comm():
    assert not isinstance(SimpleNamespace(traffic=None), Comm)
