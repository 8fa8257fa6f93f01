"""Simulated steps: critical paths by hand, shared cores, bursts, and what must hold on any cluster."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_mpi.comm.world import World
from sparse_mpi.network.cluster import Cluster
from sparse_mpi.network.simulator import Message, Program, Round, simulate
from sparse_mpi.tools.analysis.program import compiled
from sparse_mpi.tools.analysis.recording import RecordingComm

PLAIN = Cluster(alpha=1.0, beta=0.5)


def program(size, run, computed=0.0):
    """The program of what every rank runs, in which each call comes after ``computed`` seconds."""

    def recorded(comm):
        recording = RecordingComm(comm)
        run(recording)
        return [call.__class__(**{**vars(call), "computed": computed}) for call in recording.record]

    return compiled(World(size).run(recorded))


def tree(comm, length):
    """Pairs, pairs of pairs and so on send towards rank 0, as in gtopk."""
    gap = 1
    while gap < comm.size:
        if comm.rank % (2 * gap) == gap:
            comm.sendrecv(np.zeros(length, np.uint8), comm.rank - gap, None)
            return
        if comm.rank + gap < comm.size:
            comm.sendrecv(np.zeros(length, np.uint8), None, comm.rank + gap)
        gap *= 2


def test_a_tree_takes_as_many_messages_as_it_is_high():
    """8 ranks, 10 bytes: three messages one after the other, whatever the busiest rank sends itself (one)."""
    outcome = simulate(program(8, lambda comm: tree(comm, 10)), PLAIN)
    assert outcome.step == pytest.approx(3 * (1 + 5))
    assert outcome.ends == pytest.approx([18, 0, 6, 0, 12, 0, 6, 0])


def test_a_tree_that_merges_waits_for_the_merges_below():
    """Rank 0 merges for 2 s before each of its calls; so do those it waits for."""
    outcome = simulate(program(8, lambda comm: tree(comm, 10), computed=2.0), PLAIN)
    # Rank 4 computes 2, waits until 8, computes until 10, waits for rank 6 (its second call at 10 too) until 16, sends
    assert outcome.step == pytest.approx(2 + 6 + 2 + 6 + 2 + 6)
    assert outcome.computing[0] == 6 and outcome.exchanges[0] == pytest.approx(18)


def test_a_ring_takes_p_minus_1_rounds():
    def ring(comm):
        for _ in range(comm.size - 1):
            comm.sendrecv(np.zeros(4, np.uint8), (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size)

    outcome = simulate(program(5, ring), PLAIN)
    assert outcome.ends == pytest.approx([4 * (1 + 2)] * 5)


def test_who_waits_for_a_late_rank_is_late_in_a_ring():
    """Rank 0 computes for 7 s first: who is 3 ranks on hears of it in the third round, and nobody before rank 0."""

    def rounds(rank):
        made = [Round(7.0 if rank == 0 else 0.0)]
        return made + [Round(0.0, (4 * turn + rank,), (4 * turn + (rank - 1) % 4,)) for turn in range(3)]

    messages = [Message(rank, (rank + 1) % 4, 4.0) for _ in range(3) for rank in range(4)]
    outcome = simulate(Program([rounds(rank) for rank in range(4)], messages), PLAIN)
    assert outcome.ends == pytest.approx([9, 7 + 3 * 2 + 1, 7 + 2 * 2 + 1 + 3, 7 + 9])


def test_two_stages_of_a_split_and_an_allgather():
    """Each of 4 ranks sends 6 bytes to each other, all at once through one link, then gathers 2 bytes by Bruck."""

    def two_stages(comm):
        comm.alltoallv(np.zeros(24, np.uint8), np.full(4, 6), np.full(4, 6))
        comm.allgatherv(np.zeros(2, np.uint8), np.full(4, 2))

    outcome = simulate(program(4, two_stages), PLAIN)
    assert outcome.step == pytest.approx((3 * 6 * 0.5 + 1) + (1 + 1) + (1 + 2))


def test_the_root_of_a_broadcast_sends_to_all():
    outcome = simulate(program(4, lambda comm: comm.bcast(np.zeros(20, np.uint8), root=2)), PLAIN)
    assert outcome.step == pytest.approx(3 * (8 + 20) * 0.5 + 1)
    assert outcome.ends[2] == 0


def test_long_sums_and_gathers_go_round_a_ring_and_short_ones_do_not():
    """4 ranks: a sum of 96 KiB in 2 x 3 rounds of a quarter each; a gather of 64 KiB in 3 rounds of its blocks."""
    on, kib = Cluster(alpha=1.0, beta=1 / 1024), 1024
    summed = simulate(program(4, lambda comm: comm.allreduce(np.zeros(24 * kib, np.float32))), on)
    assert summed.ends == pytest.approx([6 * (1 + 24)] * 4)
    counts = np.full(4, 16 * kib)
    gathered = simulate(program(4, lambda comm: comm.allgatherv(np.zeros(16 * kib, np.uint8), counts)), on)
    assert gathered.ends == pytest.approx([3 * (1 + 16)] * 4)
    short = simulate(program(4, lambda comm: comm.allgatherv(np.zeros(kib, np.uint8), np.full(4, kib))), on)
    assert short.ends == pytest.approx([(1 + 1) + (1 + 2)] * 4)


def test_a_ring_moves_the_bytes_that_were_counted():
    def run(comm):
        recording = RecordingComm(comm)
        recording.allgatherv(np.zeros((1 + comm.rank) << 14, np.uint8))
        recording.allreduce(np.zeros(7 << 13, np.float64))
        return recording.record, comm.traffic

    done = World(7).run(run)
    messages = compiled([record for record, _ in done]).messages
    assert sum(length for _, _, length, *_ in messages) == sum(t.sent + t.control for _, t in done)


def test_ranks_that_send_to_one_share_its_link():
    messages = [Message(1, 0, 10.0), Message(2, 0, 10.0), Message(3, 0, 10.0)]
    rounds = [[Round(0.0, (), (0, 1, 2))], *([Round(0.0, (number,))] for number in range(3))]
    assert simulate(Program(rounds, messages), PLAIN).step == pytest.approx(30 * 0.5 + 1)


def test_one_rank_only_computes():
    outcome = simulate(compiled([[]], [3.5]), Cluster(alpha=1.0, beta=1.0, speed=2.0, message=9.0))
    assert outcome == ([7.0], [7.0], [])
    assert outcome.step == 7.0 and outcome.exchanges == [0.0]


def test_ranks_share_the_cores_of_their_node():
    """Four ranks compute for 3 s each: on 2 cores twice as long, with two nodes of two ranks not longer."""
    computing = compiled([[]] * 4, [3.0] * 4)
    assert simulate(computing, Cluster(0, 0, cores=2, node=4)).ends == pytest.approx([6.0] * 4)
    assert simulate(computing, Cluster(0, 0, cores=2, node=2)).ends == pytest.approx([3.0] * 4)
    assert simulate(computing, Cluster(0, 0, cores=2, node=4, others=2)).ends == pytest.approx([9.0] * 4)
    # The first two end after 3 s of sharing; then the third has a core to itself
    uneven = compiled([[]] * 3, [1.0, 1.0, 2.0])
    assert simulate(uneven, Cluster(0, 0, cores=2, node=3)).ends == pytest.approx([1.5, 1.5, 2.5])


def test_ranks_compute_more_slowly_in_a_crowd():
    """Half of 40 % more with twice as many ranks as cores; others crowd too, and ranks with a core each do not."""
    computing = compiled([[]] * 4, [3.0] * 4)
    crowded = Cluster(0, 0, cores=2, node=4, crowding=0.4)
    assert simulate(computing, crowded).ends == pytest.approx([6.0 * 1.2] * 4)
    assert simulate(computing, replace(crowded, cores=1)).ends == pytest.approx([12.0 * 1.3] * 4)
    assert simulate(computing, replace(crowded, cores=4)).ends == pytest.approx([3.0] * 4)
    assert simulate(computing, replace(crowded, cores=4, others=4)).ends == pytest.approx([6.0 * 1.2] * 4)


@pytest.mark.parametrize(("length", "exchange"), [(0.0, 1.0), (1.0, 2.0), (4.0, 5.0), (9.0, 5.0)])
def test_the_turn_that_who_has_waited_waits_for_is_a_part_of_the_exchange(length, exchange):
    """A message comes after 1 s. Then its receiver has half of the only core, for 8 s, and waits in 4 of them."""
    late = Program([[Round(0.0, (0,))], [Round(0.0, (), (0,)), Round(4.0)], [Round(11.0)]], [Message(0, 1, 5.0)])
    outcome = simulate(late, Cluster(alpha=1.0, beta=0.0, cores=1, node=3, slice=length))
    assert outcome.ends == pytest.approx([0.0, 9.0, 15.0])
    assert outcome.exchanges == pytest.approx([0.0, exchange, 0.0]), "who has waited for nothing has no exchange"


def test_who_waits_takes_a_share_of_a_core_and_messages_cost_both_ends():
    messages = [Message(0, 1, 10.0)]
    both = Program([[Round(4.0, (0,))], [Round(0.0, (), (0,))]], messages)
    assert simulate(both, Cluster(0, 0, cores=1, node=2, polling=0.5)).step == pytest.approx(4 * 1.5)
    outcome = simulate(both, Cluster(0, 0, message=1.0, byte=0.1))
    assert outcome.ends == pytest.approx([4 + 2, 4 + 2 + 2]) and outcome.computing == [4.0, 0.0]


def test_an_idle_link_lets_a_burst_pass():
    """Of 100 bytes, 40 pass at once; right after, none do; after a pause as long as 40 bytes take, 40 again."""
    on = Cluster(alpha=0.0, beta=0.5, burst=40)
    once = Program([[Round(0.0, (0,))], [Round(0.0, (), (0,))]], [Message(0, 1, 100.0)])
    assert simulate(once, on).step == pytest.approx(30)
    twice = Program(
        [[Round(0.0, (0,)), Round(0.0, (1,))], [Round(0.0, (), (0, 1))]], [Message(0, 1, 100.0), Message(0, 1, 100.0)]
    )
    assert simulate(twice, on).step == pytest.approx(80)
    later = Program(
        [[Round(0.0, (0,)), Round(50.0, (1,))], [Round(0.0, (), (0, 1))]], [Message(0, 1, 100.0), Message(0, 1, 100.0)]
    )
    assert simulate(later, on).step == pytest.approx(50 + 30)


def collective(comm):
    comm.allreduce(np.ones(42, np.float32))
    comm.alltoallv(np.zeros(3 * comm.size, np.uint8), np.full(comm.size, 3))
    comm.allgatherv(np.zeros(comm.rank + 1, np.uint8))
    tree(comm, 50)
    comm.barrier()


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 7),
    st.sampled_from(["alpha", "beta", "message", "byte", "others", "speed"]),
    st.floats(0.1, 3.0),
    st.floats(1.0, 4.0),
)
def test_nothing_gets_faster_on_a_slower_cluster(size, name, value, times):
    made = program(size, collective, computed=0.3)
    base = {"alpha": 0.5, "beta": 0.01, "message": 0.1, "byte": 0.01, "cores": 2.0, "node": 3, name: value}
    slower = base | {name: value * times}
    assert simulate(made, Cluster(**slower)).step >= simulate(made, Cluster(**base)).step * (1 - 1e-6)


def test_bytes_and_messages_are_those_that_were_counted():
    def run(comm):
        recording = RecordingComm(comm)
        collective(recording)
        return recording.record, comm.traffic

    done = World(6).run(run)
    made = compiled([record for record, _ in done])
    assert sum(length for _, _, length, *_ in made.messages) == sum(t.sent + t.control for _, t in done)
    assert len(made.messages) == sum(t.messages for _, t in done)


def test_what_is_not_one_step_is_refused():
    def lone(comm):
        recording = RecordingComm(comm)
        comm.barrier()
        recording.barrier()
        return recording.record

    records = World(2).run(lone)
    with pytest.raises(ValueError, match="rank 1 lacks collective call 1 of ranks 0, 1"):
        compiled([records[0], []])
    waiting = World(2).run(tree_of_one)
    with pytest.raises(ValueError, match="rank 0 waits for a message that rank 1 does not send"):
        compiled([waiting[0], []])
    never = Program([[Round(0.0, (), (0,))]], [Message(1, 0, 1.0)])
    with pytest.raises(ValueError, match="rank 0 waits for ever"):
        simulate(never, PLAIN)


def tree_of_one(comm):
    recording = RecordingComm(comm)
    tree(recording, 4)
    return recording.record


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"alpha": -1.0}, "alpha must be 0 or more"),
        ({"beta": inf}, "beta must be 0 or more"),
        ({"cores": 0.0}, "cores must be more than 0"),
        ({"speed": float("nan")}, "speed must be more than 0"),
    ],
)
def test_no_cluster_is_like_that(wrong, says):
    with pytest.raises(ValueError, match=says):
        Cluster(**({"alpha": 0.0, "beta": 0.0} | wrong))
    with pytest.raises(ValueError, match="gbit must be more than 0, got 0"):
        PLAIN.on(0)


def test_emulated_links_let_bursts_pass_and_real_ones_do_not():
    assert PLAIN.on(0.1, burst=12_500) == Cluster(1.0, 8e-8, burst=12_500)
    assert PLAIN.on(10).burst == 0
