"""Communicators split off another one, and the nodes that ranks are on: `World`, MPI, torchrun and `NullComm`.

What their calls return: `test_comm`.
"""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi.comm import NullComm
from sparse_mpi.comm.base import Traffic, host_leader
from sparse_mpi.comm.world import World

ONE = np.ones(1)


def test_what_is_sent_in_a_part_counts_in_the_whole(ranks):
    """And is noted there; making the part costs nothing."""

    def body(comm):
        comm.traffic = Traffic(calls=[])
        part = comm.split(comm.rank % 2)
        assert comm.traffic == Traffic()
        part.allgather(np.zeros(5, np.float32))
        noted, comm.traffic.calls = comm.traffic.calls, None
        assert part.traffic is comm.traffic and len(noted) == 1
        return comm.traffic.sent, comm.traffic.received, comm.traffic.messages

    for rank, counted in enumerate(ranks.run(body)):
        size = len(range(rank % 2, ranks.size, 2))
        assert counted == (20 * (size - 1), 20 * (size - 1), (size - 1).bit_length())


@pytest.mark.parametrize("color", [-1, 2**31, 1.0, True, None, "0"])
def test_a_colour_is_checked(ranks, color):
    def body(comm):
        with pytest.raises(ValueError, match=r"color must be a whole number in \[0, 2\^31\), got "):
            comm.split(color)
        return comm.split(np.int64(2)).size

    assert ranks.run(body) == [ranks.size] * ranks.size


def test_ranks_of_this_process_or_machine_share_a_node(ranks):
    """The tests run on one machine."""
    assert ranks.run(lambda comm: host_leader(comm)) == [0] * ranks.size
    assert ranks.run(lambda comm: host_leader(comm.split(comm.rank % 2))) == [0] * ranks.size


def test_nodes_of_a_world():
    assert World(5, per_node=2).run(lambda comm: host_leader(comm)) == [0, 0, 2, 2, 4]
    assert World(5, per_node=2).run(lambda comm: host_leader(comm.split(comm.rank % 2))) == [0, 0, 1, 1, 2]
    assert World(3, per_node=8).run(lambda comm: host_leader(comm.duplicate())) == [0] * 3
    with pytest.raises(ValueError, match="per_node must be at least 1 rank, got 0"):
        World(2, per_node=0)


def test_null_comm_takes_every_rank_to_give_the_same_colour():
    comm = NullComm(3, 1)
    part = comm.split(7)
    assert (part.rank, part.size, host_leader(comm)) == (1, 3, 0)
    part.allgather(ONE)
    assert comm.traffic.sent == 16
