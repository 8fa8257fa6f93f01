"""What sparse data on a pretended device costs: copies over the bus, and waits of the host for it."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import World, collectives
from sparse_mpi.comm.background import busy, progress_thread_of

from ..comm.test_background import Threaded
from ..fakes.fake_device import TORCH_STREAM
from .kinds_on_a_device import HOST, KINDS, OF_TORCH, bytes_of, cupy, fetched, parts_of, put

CHECKS = 4  # waits of CuPy's own for a COO matrix that it makes


@pytest.mark.parametrize("kind", KINDS)
def test_each_array_crosses_the_bus_once_and_the_host_waits_once(pretended, kind):
    """And all on the caller's stream, from pinned memory to it."""
    stream = TORCH_STREAM if kind in OF_TORCH else 7
    checks = CHECKS if kind == "coo" else 0

    def body(comm):
        there = put(kind, HOST[kind](comm.rank))
        cupy().cuda.Device().synchronize()
        for record in (pretended.copies, pretended.synchronised, pretended.worked):
            record.clear()
        with pretended.stream(7):
            found = collectives.allreduce(there, comm=comm)
        down, up = (sorted(copy.bytes for copy in pretended.copies if copy.to == to) for to in ("host", "device"))
        assert down[checks:] == sorted(part.nbytes for part in parts_of(there)) and max(down[:checks], default=0) <= 8
        assert up == sorted(part.nbytes for part in parts_of(found))
        assert all(copy.pinned for copy in pretended.copies[: len(down) - checks])
        assert len(pretended.synchronised) == 1 + checks
        assert {copy.stream for copy in pretended.copies} == {stream} == set(pretended.synchronised)
        assert pretended.worked == {stream} and not pretended.current and not (pretended.early or pretended.races)

    World(3).run(body)


def test_a_round_crosses_the_bus_once_each_way(pretended):
    def body(comm):
        keys, values = put("pair", (np.arange(1000), np.arange(1000.0)))
        pretended.synchronised.clear()
        request = collectives.allreduce_init(keys, keys[:10], comm=comm)
        assert len(pretended.synchronised) == 2  # for the two of them
        pretended.copies.clear()
        pretended.synchronised.clear()
        with pretended.stream(7):
            request.start(values)
            assert len(pretended.synchronised) == 1
            values.fill(np.nan)  # it is the caller's again
            result = request.wait()
        assert [(copy.to, copy.bytes) for copy in pretended.copies] == [("host", 8000), ("device", 80)]
        assert {copy.stream for copy in pretended.copies} == {7} and pretended.synchronised == [7]
        assert fetched(result).tolist() == [3.0 * i for i in range(10)]

    World(3).run(body)


@pytest.mark.parametrize("kind", ["pair", "torch blocks"])
def test_behind_work_in_the_background_copies_stay_on_the_caller_s_stream(pretended, kind):
    """Where the collective itself is done by the progress thread, which has streams of its own."""
    comm = Threaded(1)
    x = HOST[kind](0)
    there, expected = put(kind, x), bytes_of(collectives.allreduce(x, comm=comm))
    other = cupy().zeros(1)
    progress_thread_of(comm).start(lambda: other, other).wait()
    assert busy(comm)  # from now on
    pretended.copies.clear()
    with pretended.stream(7):
        found = collectives.allreduce(there, comm=comm)
    crossed = list(pretended.copies)
    assert len(crossed) == 4 and {copy.stream for copy in crossed} == {TORCH_STREAM if kind in OF_TORCH else 7}
    assert bytes_of(found) == expected
