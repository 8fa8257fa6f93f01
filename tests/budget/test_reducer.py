"""A reducer with a budget: all ranks decide alike, nothing is lost while k changes, and a run resumes to the bit."""

from __future__ import annotations

import time
from statistics import median

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, SparseVector, World
from sparse_mpi.budget import agreed_on
from sparse_mpi.fault_tolerance import ElasticAllreduce

SIZE = 3000
STEPS = 25
GOALS = {
    "rate": {"budget": "20kB/s"},
    "seconds": {"step_seconds": 0.15},
    "both": {"budget": "4kB/step", "step_seconds": 0.15},
    "total": {"budget": "60kB/25steps"},
    "dense": {"budget": "1GB/step", "step_seconds": 9.0},
}
every_goal = pytest.mark.parametrize("goal", GOALS.values(), ids=GOALS)
FEW, FULL = ("rate", "dense"), [pytest.mark.full("how a goal is kept is the same on MPI and on World")]
SOME = ("elect", "oktopk", "topka", "gtopk", "spardl")


def gradient(rank: int, step: int) -> np.ndarray:
    return np.random.default_rng([rank, step]).standard_normal(SIZE).astype(np.float32) ** 3


def dense_of(total) -> np.ndarray:
    return total.to_dense() if isinstance(total, SparseVector) else total


def made(comm, script, goal, algorithm="elect", **options) -> SparseAllreduce:
    reducer = SparseAllreduce(SIZE, comm=comm, algorithm=algorithm, **goal, **options)
    script(reducer.policy.tracker, comm.rank)
    return reducer


def stepped(reducer, rank, steps=range(STEPS), check=False):
    """Return the totals and decisions of some steps."""
    made = []
    for step in steps:
        total = reducer.step(gradient(rank, step), check=check)
        made.append((dense_of(total).tobytes(), reducer.decision))
    return made


@every_goal
@pytest.mark.parametrize("algorithm", SOME)
@pytest.mark.thin(1)
@pytest.mark.ranks(1, 2, 3, 8)
def test_all_ranks_decide_alike_and_both_laws_hold_while_k_changes(ranks, scripted, algorithm, goal):
    def body(comm):
        fine = {"wire": "packed"} if algorithm == "elect" else {}  # 8 bits afford dense steps too soon
        reducer = made(comm, scripted, goal, algorithm, **fine)
        seen = stepped(reducer, comm.rank, check=True)
        sent = sum(dense_of(np.frombuffer(total, np.float32)) for total, _ in seen)
        return seen, sent, reducer.residual

    first, *others = results = ranks.run(body)
    assert all(seen == first[0] for seen, _, _ in others)
    ks = {decision.k for _, decision in first[0]}
    assert len(ks) > (2 if goal == GOALS["dense"] else 8) or ranks.size == 1  # one that affords dense is there at once
    # Nothing is lost: what was sent and what is owed are all gradients.
    everything = sum(gradient(rank, step) for rank in range(ranks.size) for step in range(STEPS))
    owed = sum(residual for _, _, residual in results)
    np.testing.assert_allclose(first[1] + owed, everything, rtol=1e-3, atol=1e-2)


@pytest.mark.against_world
@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("goal", [pytest.param(GOALS[name], marks=FULL[name in FEW :]) for name in GOALS], ids=GOALS)
def test_world_equals_mpi(ranks, scripted, goal):
    if goal == GOALS["dense"] and ranks.size > ranks.ordered:
        pytest.skip("MPI and gloo add that many numbers in orders of their own")

    def body(comm):
        return stepped(made(comm, scripted, goal), comm.rank)

    assert ranks.run(body) == World(ranks.size).run(body)


@pytest.mark.thin(1)
@pytest.mark.ranks(1, 3)
@every_goal
def test_a_resumed_run_goes_on_to_the_bit(ranks, scripted, goal):
    def steps(reducer, comm, numbers):
        return [(dense_of(reducer.step(gradient(comm.rank, step))).tobytes(), reducer.decision) for step in numbers]

    def body(comm):
        long, short, again = (made(comm, scripted, goal) for _ in range(3))
        straight = steps(long, comm, range(STEPS))
        steps(short, comm, range(15))
        again.load_state_dict(short.state_dict())
        again.policy.tracker.steps = 15
        return straight[15:], steps(again, comm, range(15, STEPS))

    for straight, resumed in ranks.run(body):
        assert straight == resumed


def test_another_number_of_ranks_goes_on_with_what_was_spent(scripted):
    goal = GOALS["rate"]

    def first(comm):
        reducer = made(comm, scripted, goal)
        stepped(reducer, comm.rank)
        return reducer.state_dict()

    saved = World(3).run(first)

    def then(comm):
        reducer = made(comm, scripted, goal)
        reducer.take_over(saved[comm.rank :: comm.size], 3)
        spent = reducer.policy.tracker.controller.account.sent
        stepped(reducer, comm.rank, range(3))
        return spent, reducer.policy.tracker.controller.state()

    for size in (2, 5):
        spent, states = zip(*World(size).run(then), strict=True)
        assert len(set(spent)) == 1 and spent[0] > 0
        assert all(state == states[0] for state in states)


@pytest.mark.ranks(least=2)
def test_the_slowest_rank_counts(ranks):
    def body(comm):
        rest, exposed = 100 + comm.rank, comm.size - comm.rank
        return agreed_on(np.array([rest, -exposed, -exposed, 10 * comm.rank, 0]), comm).tolist()

    slowest = ranks.size - 1
    assert ranks.run(body) == [[100 + slowest, -1, -1, 10 * slowest, 0]] * ranks.size


@pytest.mark.ranks(3)
def test_without_a_script_ranks_that_measure_different_times_decide_alike(ranks):
    def body(comm):
        reducer = SparseAllreduce(SIZE, comm=comm, budget="500kB/s", step_seconds=0.1)
        for step in range(8):
            time.sleep(0.002 * comm.rank)
            reducer.start(gradient(comm.rank, step)).wait()
        return reducer.decision

    first, *others = ranks.run(body)
    assert first.step == 7 and all(other == first for other in others)
    assert first.seconds > 0.002


@pytest.mark.ranks(3)
def test_bytes_are_those_of_the_budget(ranks, scripted):
    def body(comm):
        reducer = made(comm, scripted, {"budget": "2kB/step"}, "topka")
        stepped(reducer, comm.rank, range(120))
        return reducer.policy.tracker.controller.account.sent

    assert ranks.run(body)[0] == pytest.approx(120 * 2000, rel=0.05)


@pytest.mark.ranks(3)
def test_seconds_are_those_that_were_wanted(ranks, scripted):
    def body(comm):
        return [decision.seconds for _, decision in stepped(made(comm, scripted, {"step_seconds": 0.15}), comm.rank)]

    assert median(ranks.run(body)[0][8:]) == pytest.approx(0.15, rel=0.15)


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"budget": "5"}, "budget must be a number above 0 with a unit"),
        ({"budget": "5MB/s", "k": 3}, "k must be left out with budget"),
        ({"step_seconds": 0.2, "density": 0.1}, "density must be left out with step_seconds"),
        ({"budget": "0MB/s"}, "budget must be above 0"),
        ({"step_seconds": -1}, r"step_seconds must be in \(0, inf\)"),
        ({"budget": "5B/s"}, "budget must let one entry of 8 bytes of each of 1 segments"),
        ({"budget": "5MB/s", "algorithm": "dense"}, "algorithm must send less where k is smaller"),
        ({"budget": "5MB/s", "algorithm": "powersgd"}, "algorithm must send less where k is smaller"),
    ],
)
def test_bad_arguments_raise_on_every_rank_before_the_first_message(ranks, options, error):
    def body(comm):
        before = comm.traffic.copy()
        with pytest.raises(ValueError, match=error):
            SparseAllreduce(SIZE, comm=comm, **options)
        return (comm.traffic - before).sent

    assert ranks.run(body) == [0] * ranks.size


@pytest.mark.ranks(3)
def test_budgets_that_differ_raise_on_every_rank(ranks):
    def body(comm):
        with pytest.raises(ValueError, match=r"(?s)all ranks must call with the same arguments.*rate=5000000\.0"):
            SparseAllreduce(SIZE, comm=comm, budget="5MB/s" if comm.rank else "6MB/s")

    ranks.run(body)


@pytest.mark.ranks(3)
def test_an_amount_in_a_step_is_refused(ranks):
    def body(comm):
        reducer = SparseAllreduce(SIZE, comm=comm, budget="5MB/s")
        with pytest.raises(ValueError, match="k must be left out with a budget"):
            reducer.step(gradient(comm.rank, 0), k=4)

    ranks.run(body)


def test_ranks_that_may_be_lost_have_no_budget():
    def body(comm):
        with pytest.raises(ValueError, match="budget and step_seconds must be None where ranks may be lost"):
            ElasticAllreduce(SIZE, comm=comm, budget="5MB/s")

    World(2).run(body)
