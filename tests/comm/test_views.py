"""Views of a communicator, and what users keep on one."""

from __future__ import annotations

import numpy as np

from sparse_mpi.comm.forwarding import ForwardingComm
from sparse_mpi_bench.analysis.recording import RecordingComm


def test_what_is_recorded_does_not_name_the_view(ranks):
    def body(comm):
        recording, one = RecordingComm(comm), np.ones(comm.size)
        view = ForwardingComm(recording)
        view.sendrecv(one, comm.rank, comm.rank)
        view.allgather(one), view.allgatherv(one), view.alltoallv(one, np.ones(comm.size, int))
        view.allreduce(one), view.bcast(one)
        return {call.where for call in recording.record}

    assert ranks.run(body) == [{"test_views.body"}] * ranks.size


def test_attributes_belong_to_one_communicator(ranks):
    def body(comm):
        one = comm.duplicate()
        one.attributes["key"] = "kept"
        others = [one.duplicate(), ForwardingComm(one), one.split(0), RecordingComm(one)]
        return one.attributes["key"], [other.attributes for other in others]

    assert ranks.run(body) == [("kept", [{}] * 4)] * ranks.size
