"""The protocol of a transport: few members, named where they are missing, and enough for one of a third party."""

from __future__ import annotations

import runpy
from types import SimpleNamespace

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.comm import as_comm
from sparse_mpi.comm.base import MEMBERS
from sparse_mpi.comm.counting import CountingComm

from ..launch import ROOT

EXAMPLE = runpy.run_path(str(ROOT / "examples" / "threads_transport.py"))


def test_what_lacks_members_is_told_which():
    kind = type("Theirs", (SimpleNamespace,), {})
    with pytest.raises(TypeError, match="got Theirs, which lacks allgatherv, split; derive it from"):
        as_comm(kind(**dict.fromkeys(set(MEMBERS) - {"split", "allgatherv"}, print)))
    complete = kind(**dict.fromkeys(MEMBERS, print))
    assert as_comm(complete) is complete


def test_a_class_that_moves_nothing_is_told_what_it_lacks():
    with pytest.raises(TypeError, match="_allgather"):
        type("Half", (CountingComm,), {})(0, 1)


@pytest.mark.parametrize("algorithm", ["oktopk", "topka", "gtopk", "spardl", "dense"])
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_a_transport_of_threads_gives_the_bytes_of_a_world(algorithm, ranks):
    def body(comm):
        reducer = SparseAllreduce(500, k=20, comm=comm, algorithm=algorithm)
        drawn = np.random.default_rng(comm.rank)
        totals = [reducer.step(drawn.standard_normal(500).astype(np.float32)) for _ in range(3)]
        part = comm.split(comm.rank % 2)
        traffic = comm.traffic
        counted = traffic.sent, traffic.received, traffic.messages, traffic.control
        values = [getattr(total, "values", total).tobytes() for total in totals]
        return values, counted, part.size, part.bcast(np.array([comm.rank])).tolist()

    assert EXAMPLE["run"](ranks, body) == World(ranks).run(body)
