"""Ranks that are lost at any call: what the survivors reduce is what a planned departure gives, and nothing is lost."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi import SparseAllreduce
from sparse_mpi.comm import NullComm
from sparse_mpi.comm.scheduler import Killed
from sparse_mpi.comm.world import World
from sparse_mpi.fault_tolerance import ElasticAllreduce, RankFailure, Team
from sparse_mpi.feedback import FEEDBACKS

from .survivors import RANKS, SIZE, STEPS, facts, gradient, train, trained


def test_whatever_call_a_rank_is_lost_at_it_is_as_if_it_had_left_before_a_step():
    planned = {step: [facts(r) for r in train({2: step}) if r] for step in (3, 4)}
    assert all((lost, len(totals)) == ([(3, (2,), 4)], STEPS) for totals, _, lost, _ in planned[3])
    assert [ranks for _, ranks in planned[3][0][0]] == [5] * 3 + [4] * 5
    seen = set()
    for call in range(40):
        left = [facts(r) for r in train({2: (3, call)}) if r]
        if len(left) == RANKS:
            break
        matching = [step for step, expected in planned.items() if left == expected]
        assert len(matching) == 1, f"call {call}"
        seen.update(matching)
    assert len(left) == RANKS, "the step has an end"
    assert seen == {3}, "a rank that is lost within a step gave nothing to it: the last call is the meeting"


def test_a_step_that_one_rank_has_completed_is_completed_on_all():
    """Rank 2 is lost in the meeting: ranks 0 and 3 do not learn from it that the step is complete, ranks 1 and 4 do."""

    def torn(comm):
        meetings = iter(range(STEPS))

        def meet():
            comm_barrier()
            if next(meetings) == 3:
                if comm.rank == 2:
                    raise Killed
                if comm.rank in (0, 3):
                    raise RankFailure

        comm_barrier, comm.barrier = comm.barrier, meet
        return trained(comm, copy_every=2)

    planned = [facts(result) for result in train({2: 4}, copy_every=2) if result]
    assert [facts(result) for result in World(RANKS).run(torn) if result] == planned


@pytest.mark.parametrize(("meeting", "lost"), [(1, [(1,)]), (2, [])])
def test_ranks_that_end_their_programs_first_are_not_called_lost(capsys, monkeypatch, meeting, lost):
    """In the last of two meetings a rank may be gone before the others have heard that all have come."""
    monkeypatch.setattr(logging.root, "handlers", [])  # as in a program that sets up none: the line is on stderr

    def main(comm):
        team, barriers = Team(comm), iter(range(1, 9))

        def meet():
            if comm.rank == 1 and next(barriers) == meeting:
                raise Killed
            barrier()

        barrier, comm.barrier = comm.barrier, meet
        team.close()
        return [departure.ranks for departure in team.departures]

    assert [left for left in World(4).run(main) if left is not None] == [lost] * 3
    assert ("lost before step" in capsys.readouterr().err) == bool(lost)


@given(
    ranks=st.sampled_from([2, 3, 5, 6, 7]),
    leave=st.dictionaries(st.integers(0, 6), st.tuples(st.integers(0, STEPS - 1), st.integers(-1, 25)), max_size=4),
    algorithm=st.sampled_from(["oktopk", "elect", "gtopk", "adtopk", "topkdsa", "dense", "spardl"]),
    feedback=st.sampled_from(sorted(FEEDBACKS)),
    copy_every=st.sampled_from([0, 1, 3, 100]),
)
def test_any_schedule_of_departures_leaves_survivors_that_agree(ranks, leave, algorithm, feedback, copy_every):
    leave = {rank: when for rank, when in leave.items() if rank < ranks - 1}  # one rank is left at least
    options = {"feedback": feedback, "copy_every": copy_every}
    left = [result for result in train(leave, algorithm, ranks=ranks, **options) if result]
    assert left
    for totals, residual, departures, _ in left:
        assert [total.tobytes() for total, _ in totals] == [total.tobytes() for total, _ in left[0][0]]
        assert [number for _, number in totals] == [number for _, number in left[0][0]]
        assert sum(len(departure.ranks) for departure in departures) == ranks - len(left)
        assert np.isfinite(residual).all()


def test_clipping_survives():
    """Whenever a rank is lost, the others clip by one factor; without a loss, by the one of a plain reducer."""

    def main(comm, elastic=True):
        kind = ElasticAllreduce if elastic else SparseAllreduce
        reducer = kind(SIZE, density=0.05, comm=comm, clip_norm=99.0)
        rank = comm.rank
        return np.array([reducer.step(gradient(rank, step)).to_dense() for step in range(4)])

    plain, elastic = (World(3).run(lambda comm, how=how: main(comm, how)) for how in (False, True))
    assert np.array_equal(plain[0], elastic[0])
    for call in range(-1, 12, 2):
        left = [result for result in World(RANKS, leave={1: (2 + call % 3 // 2, call)}).run(main) if result is not None]
        assert len(left) >= 4 and all(np.array_equal(totals, left[0]) for totals in left)


def test_a_flush_survives():
    def main(comm):
        reducer = ElasticAllreduce(SIZE, density=0.05, comm=comm, copy_every=1, copy="exact")
        total = reducer.step(gradient(comm.rank, 0)).to_dense()
        return total + reducer.flush()

    left = [result for result in World(RANKS, leave={1: (1, 1)}).run(main) if result is not None]
    assert all(np.array_equal(total, left[0]) for total in left)
    survivors = sum(gradient(rank, 0) for rank in range(RANKS) if rank != 1)
    assert (np.abs(left[0] - survivors) <= np.abs(gradient(1, 0))).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"copy_every": -1}, "copy_every must be at least 0 steps, got -1; 0 copies nothing"),
        ({"copy": "float16"}, "copy must be one of exact, bfloat16, got 'float16'"),
        ({"min_ranks": 9}, r"min_ranks must be in \[1, 3\]"),
    ],
)
def test_bad_arguments_are_refused_on_all_ranks(options, text):
    def main(comm):
        with pytest.raises(ValueError, match=text):
            ElasticAllreduce(SIZE, density=0.05, comm=comm, **options)

    World(3).run(main)


def test_a_transport_that_does_not_survive_is_refused():
    with pytest.raises(ValueError, match="comm must be one that survives the loss of a rank"):
        ElasticAllreduce(SIZE, density=0.05, comm=NullComm())


def test_a_second_team_of_the_same_ranks_is_refused():
    def main(comm):
        first = ElasticAllreduce(SIZE, density=0.05, comm=comm)
        with pytest.raises(ValueError, match="comm must not have a team already"):
            ElasticAllreduce(SIZE, density=0.05, comm=comm)
        return ElasticAllreduce(SIZE, density=0.05, team=first.team).step(gradient(comm.rank, 0)).nnz

    assert min(World(3).run(main)) > 0


def test_a_dense_step_sums_the_gradient_and_all_that_is_owed():
    def main(comm):
        reducer = ElasticAllreduce(SIZE, density=0.05, comm=comm)
        sums = [reducer.step(gradient(comm.rank, step), dense=step > 0) for step in range(2)]
        return sums[0].to_dense() + sums[1], reducer.residual.any()

    expected = sum(gradient(rank, step) for rank in range(3) for step in range(2))
    for total, left in World(3).run(main):
        np.testing.assert_array_equal(total, expected)
        assert not left


REFUSED = {
    "algorithm must stay": lambda reducer: reducer.use("dense"),
    "check must be False": lambda reducer: reducer.step(gradient(reducer.team.number, 0), check=True),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_it_cannot_do_is_refused_and_training_goes_on(text):
    def main(comm):
        reducer = ElasticAllreduce(SIZE, density=0.05, comm=comm)
        with pytest.raises(ValueError, match=text):
            REFUSED[text](reducer)
        return reducer.step(gradient(comm.rank, 0)).nnz

    assert min(World(3).run(main)) > 0


def test_reducers_of_a_team_share_what_becomes_of_it():
    """Three reducers take turns; what one of them meets, the others catch up with, also after several losses."""

    def main(comm):
        team, rank = Team(comm, min_ranks=2), comm.rank
        reducers = [
            ElasticAllreduce(SIZE, density=0.05, team=team, algorithm=name, copy_every=2, copy="exact")
            for name in ("oktopk", "elect", "oktopk-2level")
        ]
        digest = []
        for step in range(STEPS):
            for number, reducer in enumerate(reducers):
                total = reducer.step(gradient(rank, 10 * step + number))
                digest.append((total.to_dense().tobytes(), reducer.ranks))
            together = team.transaction(lambda: team.comm.allreduce(np.ones(1)))
            digest.append((together.tobytes(), len(team.members)))
        return digest, sorted(owner for reducer in reducers for owner in reducer.inherited), team.members

    for leave in ({1: (4, 3)}, {1: 4, 3: 4}, {0: (7, 1), 3: (13, 2)}):
        left = [result for result in World(RANKS, leave=leave).run(main) if result is not None]
        members = [rank for rank in range(RANKS) if rank not in leave]
        assert len(left) == len(members)
        for digest, _, found in left:
            assert digest == left[0][0] and found == members
        inherited = sorted(owner for _, owners, _ in left for owner in owners)
        assert inherited == sorted(3 * list(leave)), "each reducer's residual of each lost rank has one heir"
