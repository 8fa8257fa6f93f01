"""``trace``: recorded calls, their textbook schedules, the timeline and the strip of a step."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.collectives.network import Network
from sparse_mpi.comm.base import host_leader
from sparse_mpi.comm.world import World
from sparse_mpi_bench import networks
from sparse_mpi_bench.analysis import gradients
from sparse_mpi_bench.analysis.message_diagram import BARE, watch
from sparse_mpi_bench.analysis.recording import RecordingComm
from sparse_mpi_bench.analysis.replay import replay

OPTIONS = ["bench", "trace", "--ranks", "4", "--n", "2000", "--density", "0.05", "--step", "2", "--network", "8/2"]
NETWORK = Network(alpha=1.0, beta=0.5)


def rows(comm, count):
    return np.full((count, 2), comm.rank, np.int32)


CALLS = {
    "sendrecv": lambda comm: (
        comm.sendrecv(rows(comm, comm.rank + 1), (comm.rank + 1) % comm.size, comm.rank - 1)
        if comm.rank
        else comm.sendrecv(rows(comm, 1), 1 % comm.size, comm.size - 1)
    ),
    "allgather": lambda comm: comm.allgather(rows(comm, 3)),
    "allgather control": lambda comm: comm.allgather(rows(comm, 3), control=True),
    "allgatherv": lambda comm: comm.allgatherv(rows(comm, comm.rank)),
    "allgatherv counts": lambda comm: comm.allgatherv(rows(comm, comm.rank), np.arange(comm.size)),
    "alltoallv": lambda comm: comm.alltoallv(rows(comm, comm.size * 2), np.full(comm.size, 2)),
    "alltoallv expected": lambda comm: comm.alltoallv(
        rows(comm, 5), 5 * (np.arange(comm.size) == 0), np.full(comm.size, 5 * (comm.rank == 0))
    ),
    "allreduce": lambda comm: comm.allreduce(np.ones(840, np.float32)),
    "allreduce control": lambda comm: comm.allreduce(np.ones(840), "max", control=True),
    "bcast": lambda comm: comm.bcast(rows(comm, 4), root=comm.size - 1),
    "barrier": lambda comm: comm.barrier(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_schedule_sends_the_bytes_and_messages_that_were_counted(name):
    """On any number of ranks. Of gathers each rank counts that its own part goes to all others, whoever sends it on."""

    def run(comm):
        recording = RecordingComm(comm)
        CALLS[name](recording)
        return recording.record, comm.traffic

    for size in range(1, 9):
        records, counted = zip(*World(size).run(run), strict=True)
        transfers = replay(records, NETWORK)
        payload, control = (sum(t.bytes for t in transfers if t.control == kind) for kind in (False, True))
        assert (payload, control) == (sum(t.sent for t in counted), sum(t.control for t in counted))
        for rank, traffic in enumerate(counted):
            assert sum(t.source == rank for t in transfers) == traffic.messages and traffic.seconds > 0
            assert sum(t.bytes for t in transfers if t.dest == rank and not t.control) == traffic.received
            if name.startswith("allgather"):
                own = records[rank][0].bytes * (size - 1)
                assert own == (traffic.control if name.endswith("control") else traffic.sent)
            else:
                assert sum(t.bytes for t in transfers if t.source == rank) == traffic.sent + traffic.control
            assert sum(call.counted.sent for call in records[rank]) == traffic.sent


def test_times_follow_latency_bandwidth_and_who_waits_for_whom():
    def relay(comm):
        """Rank 0 -> 1 -> 2, 8 bytes each, then all meet."""
        recording = RecordingComm(comm)
        if comm.rank:
            recording.sendrecv(rows(comm, 1), None, comm.rank - 1)
        if comm.rank < 2:
            recording.sendrecv(rows(comm, 1), comm.rank + 1, None)
        recording.barrier()
        return recording.record

    transfers = replay(World(3).run(relay), NETWORK)
    first, second, *meeting = transfers
    assert (first.source, first.dest, first.start, first.end, first.round) == (0, 1, 0, 5, 0)
    assert (second.source, second.dest, second.start, second.end, second.round) == (1, 2, 5, 10, 1)
    assert {t.phase for t in transfers} == {
        "test_trace.relay: sendrecv",
        "test_trace.relay: barrier",
    }
    assert max(t.end for t in meeting) == 12 and min(t.round for t in meeting) == 2


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_calls_of_a_part_have_the_ranks_of_the_whole(size):
    def run(rank):
        """Ranks 0, 3, 6 | 1, 4, 7 | 2, 5; in each the first ends after the others meet, and then all ranks meet."""
        comm = RecordingComm(rank)
        part = comm.split(comm.rank % 3)
        part.bcast(rows(comm, 2), root=part.size - 1)
        part.alltoallv(rows(comm, part.size), np.ones(part.size, np.int64), np.ones(part.size, np.int64))
        part.sendrecv(rows(comm, 1), (part.rank + 1) % part.size, part.rank - 1 if part.rank else part.size - 1)
        part.split(min(part.rank, 1)).allgather(rows(comm, 1))
        comm.sendrecv(rows(comm, 1), (comm.rank + 1) % comm.size, comm.rank - 1 if comm.rank else comm.size - 1)
        part.allreduce(np.ones(840, np.float32))
        comm.barrier()
        return comm.record, rank.traffic.copy(), host_leader(comm)

    done = World(size).run(run)
    transfers = replay([record for record, *_ in done], NETWORK)
    for rank, (_, traffic, node) in enumerate(done):
        assert node == 0 and sum(t.source == rank for t in transfers) == traffic.messages
    inside = [t for t in transfers if not t.phase.endswith((": barrier", ": sendrecv"))]
    assert all((t.source - t.dest) % 3 == 0 for t in inside) and bool(inside) == (size > 3)
    assert sum(t.bytes for t in transfers) == sum(t.sent + t.control for _, t, _ in done)


def test_table_and_record_tell_of_every_message(tmp_path, capsys):
    file = tmp_path / "t.json"
    assert main([*OPTIONS, "--algorithms", "topka", "gtopk", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("P = 4, 4 a node, n = 2,000, density 0.05, step 2, independent normal entries; 8/2: 2 us")
    assert "topka.reduce: allgatherv" in printed and "gtopk.climb: sendrecv" in printed
    record = json.loads(file.read_text())
    topka, gtopk = record["algorithms"]["topka"], record["algorithms"]["gtopk"]
    assert record["network"] == pytest.approx({"alpha": 2e-6, "beta": 1e-9})
    # the agreement, which takes 16 us; then counts of 4 bytes in two rounds, and pairs of 100 entries in two more
    checks = 4 * 24
    assert np.sum(topka["matrix"]) == checks + 4 * (12 + 3 * 800) and np.trace(topka["matrix"]) == 0
    assert topka["seconds"] == pytest.approx(4 * 2e-6 + 24e-9 + 4 * 2e-6 + (12 + 2400) * 1e-9, rel=1e-3)
    assert np.sum(gtopk["matrix"]) == checks + 3 * 800 + 3 * (800 + 8)
    up = [(t["source"], t["dest"]) for t in gtopk["transfers"] if t["phase"] == "gtopk.climb: sendrecv"]
    assert sorted(up) == [(1, 0), (2, 0), (3, 2)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("name", BARE)
def test_what_ranks_have_last_is_the_result(name, ranks):
    watched = watch(name, gradients.make("independent", 12, 0), ranks, 0.25, 1)
    last = next(each for each in reversed(watched.exchanges) if each.messages)
    for rank in range(ranks):
        came = [index for message in last.messages if message.dest == rank for index in message.entries]
        assert sorted(set(came)) == np.flatnonzero(watched.result).tolist()


def test_a_strip_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    options = ["--algorithms", "gtopk", "--ranks", "4", "--n", "12", "--density", "0.25", "--step", "1"]
    assert main(["bench", "trace", *options, "--strip", str(tmp_path / "s.svg")]) == 0
    assert (tmp_path / "s.svg").stat().st_size > 5000


def test_networks_by_name_and_numbers():
    daint, of = networks.named("piz-daint")
    assert daint.alpha == pytest.approx(1.09e-6) and 9e9 < 1 / daint.beta < 10e9 and "Aries" in of
    assert networks.named("25/5")[0] == Network.of(25, 5)
