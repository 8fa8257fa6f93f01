"""An alltoallv that hands over what has come while the rest is on its way, and what is unpacked meanwhile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sparse_mpi import World
from sparse_mpi.algorithms.exchange import split_reduce
from sparse_mpi.collectives.algorithms import owned
from sparse_mpi.collectives.entries import Entries
from sparse_mpi.collectives.messages import Format
from sparse_mpi.comm.forwarding import Renumbered
from sparse_mpi.comm.mpi import MPIComm
from sparse_mpi.select.exact import top_k
from sparse_mpi.sparse import equal_boundaries
from sparse_mpi.wire import WIRES, BitPacked, Coo
from sparse_mpi_bench.analysis.recording import RecordingComm


def sends(source: int, size: int) -> np.ndarray:
    """How many rows a rank has for the others: uneven, some none."""
    return (3 * source + 5 * np.arange(size)) % 4 * (1 + source)


def streamed(comm, send: np.ndarray, counts: np.ndarray) -> tuple[list[np.ndarray], list[int]]:
    """The rows of each rank, and the first ranks of the parts in their order."""
    found: list[list[np.ndarray]] = [[] for _ in range(comm.size)]
    firsts = []

    def take(first, rows, by_rank):
        firsts.append(first)
        assert len(rows) == by_rank.sum() and first + len(by_rank) <= comm.size
        for rank, part in enumerate(np.split(rows, np.cumsum(by_rank)[:-1])):
            found[first + rank].append(part.copy())

    comm.streamed_alltoallv(send, counts, take)
    assert [len(parts) for parts in found] == [1] * comm.size, "each rank is handed over once"
    return [part for (part,) in found], firsts


@pytest.mark.parametrize("held", [0, 40, 1 << 18])
@pytest.mark.parametrize("first", [None, 1, 4])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_it_hands_over_what_alltoallv_returns_and_counts_as_much(ranks, monkeypatch, held, first, shape):
    monkeypatch.setattr("sparse_mpi.comm.point_to_point.MIN_STREAMED_BYTES", held)

    def body(comm):
        view = comm if first is None else Renumbered(comm, first)
        counts = sends(view.rank, view.size)
        send = np.arange(counts.sum() * (2 if shape else 1), dtype=np.int32).reshape(-1, *shape) + 1000 * view.rank
        before = comm.traffic.copy()
        rows, by_rank = view.alltoallv(send, counts)
        between = comm.traffic.copy()
        parts, firsts = streamed(view, send, counts)
        spent, usual = comm.traffic - between, between - before
        assert replace(spent, seconds=0.0) == replace(usual, seconds=0.0)
        expected = np.split(rows, np.cumsum(by_rank)[:-1])
        assert all(part.dtype == own.dtype for part, own in zip(parts, expected, strict=True))
        assert [part.tolist() for part in parts] == [own.tolist() for own in expected]
        return firsts

    for firsts in ranks.run(body):
        assert len(firsts) == 1 or held < 1 << 18, "few bytes come at once"


def test_the_time_of_who_takes_is_not_that_of_the_call():
    def body(comm):
        def take(first, rows, counts):
            comm.traffic.seconds += 100.0  # as if clocks had gone on meanwhile

        comm.streamed_alltoallv(np.ones(3), [1, 1, 1], take)
        return comm.traffic.seconds

    assert all(100 <= seconds < 101 for seconds in World(3).run(body))


@pytest.mark.ranks(least=3)
def test_what_has_come_is_taken_before_the_last_rank_sends(ranks):
    """Over MPI the last rank sends nothing until rank 0 says that it has taken what the others sent."""

    def body(comm):
        said, last = comm.duplicate(), comm.size - 1
        streams = isinstance(comm, MPIComm)
        taken: list[int] = []

        def take(first, rows, counts):
            taken.extend(range(first, first + len(counts)))
            if streams and comm.rank == 0 and len(taken) == last:
                said.sendrecv(np.ones(1), last, None)

        if streams and comm.rank == last:
            said.sendrecv(np.ones(1), None, 0)
        comm.streamed_alltoallv(np.ones(comm.size * 40_000), np.full(comm.size, 40_000), take)
        return sorted(taken)

    assert ranks.run(body) == [list(range(ranks.size))] * ranks.size


class OneByOne(Renumbered):
    """A view whose messages are handed over one by one, from the rank above on, and noted."""

    def __init__(self, comm):
        super().__init__(comm, 0)
        self.events: list[str] = []

    def streamed_alltoallv(self, send, counts, take):
        rows, by_rank = self.alltoallv(send, counts)
        ends = np.cumsum(by_rank)
        for step in range(self.size):
            rank = (self.rank + step) % self.size
            self.events.append(f"message {step}")
            take(rank, rows[ends[rank] - by_rank[rank] : ends[rank]], by_rank[rank : rank + 1])


class Noting(Coo):
    """A format that notes when messages are unpacked."""

    def __init__(self, events: list[str]):
        object.__setattr__(self, "events", events)

    def unpack(self, buffer, lengths, regions, size, dtype):
        self.events.append(f"unpacked {len(lengths)}")
        return super().unpack(buffer, lengths, regions, size, dtype)


def test_selections_are_unpacked_before_the_last_has_come():
    def body(comm):
        view = OneByOne(comm)
        selected = top_k(np.random.default_rng(comm.rank).standard_normal(300), 40)
        split_reduce(selected, equal_boundaries(300, comm.size), None, Noting(view.events), view)
        return view.events

    for events in World(4).run(body):
        assert events == [word for step in range(4) for word in (f"message {step}", "unpacked 1")]


@pytest.mark.parametrize("name", [name for name, wire in WIRES.items() if wire.lossless or isinstance(wire, BitPacked)])
@pytest.mark.parametrize("size", [1, 3, 5, 7])
def test_sums_have_the_same_bits_however_messages_come(size, name):
    def body(comm):
        selected = top_k(np.random.default_rng(comm.rank).standard_normal(300).astype(np.float32), 60)
        boundaries = equal_boundaries(300, comm.size)
        once, by_one = (split_reduce(selected, boundaries, None, WIRES[name], view) for view in (comm, OneByOne(comm)))
        for one, other in zip(once[:2], by_one[:2], strict=True):
            assert one.indices.tolist() == other.indices.tolist()
            assert one.values.tobytes() == other.values.tobytes()
        return once[2] == by_one[2]

    assert all(World(size).run(body))


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize("size", [1, 3, 5, 7])
def test_keyed_entries_have_the_same_bits_however_messages_come(size, dtype):
    regions = np.stack([100 * np.arange(size), 100 * np.arange(size) + 99], axis=1)

    def body(comm):
        drawn = np.random.default_rng(comm.rank)
        keys = np.flatnonzero(drawn.random(100 * size) < 0.3)
        entries = Entries(keys, (99 * drawn.standard_normal(len(keys))).astype(dtype))
        form = Format(np.dtype(dtype), (), 100 * size)
        once, by_one = (owned(entries, np.add, regions, form, view) for view in (comm, OneByOne(comm)))
        return once.keys.tolist() == by_one.keys.tolist() and once.values.tobytes() == by_one.values.tobytes()

    assert all(World(size).run(body))


def test_it_is_recorded_as_an_alltoallv():
    def body(comm):
        recording, rows = RecordingComm(comm), np.ones(comm.rank * comm.size)
        parts, _ = streamed(recording, rows, np.full(comm.size, comm.rank))
        recording.alltoallv(rows, np.full(comm.size, comm.rank))
        one, other = recording.record
        assert (one.name, one.to, one.bytes) == (other.name, other.to, other.bytes)
        return list(map(len, parts))

    assert World(3).run(body) == [[0, 1, 2]] * 3
