"""A damaged state is refused on all ranks alike, by the name of what is damaged; or it loads and training goes on."""

from __future__ import annotations

import pytest

from sparse_mpi import ALGORITHMS, SparseAllreduce, World
from sparse_mpi.feedback import FEEDBACKS
from sparse_mpi.reduction.form import FORM, sealed

from ..gradients import gradient
from .damage import check_all

SHAPES = [(6, 5), (10,)]


def reducer_of(comm, **options):
    return SparseAllreduce(SHAPES, k=5, comm=comm, **options)


def saved(**options):
    def run(comm):
        reducer = reducer_of(comm, **options)
        for step in range(3):
            reducer.step(gradient(comm.rank, step, 40))
        return reducer.state_dict()

    return World(2).run(run)


# What feedback keeps lies beside what the algorithm keeps, of which gaussiank has little
CASES = [(name, "residual") for name in ALGORITHMS] + [("gaussiank", name) for name in FEEDBACKS if name != "residual"]
DAILY = ("adtopk", "elect", "powersgd"), ("gmc",)
OTHERS = pytest.mark.full("their states have no other kinds of parts")
MARKED = [pytest.param(*case, marks=() if case[0] in DAILY[0] or case[1] in DAILY[1] else OTHERS) for case in CASES]


@pytest.mark.parametrize(("algorithm", "feedback"), MARKED)
def test_a_damaged_state_of_a_reducer_is_refused_by_name(algorithm, feedback):
    states = saved(algorithm=algorithm, feedback=feedback)
    check_all(
        states,
        lambda comm: reducer_of(comm, algorithm=algorithm, feedback=feedback),
        lambda reducer, rank: reducer.step(gradient(rank, 3, 40)),
        ("load_state_dict", "take_over"),
    )


def assert_refused(states, match, **options):
    """Whether they are loaded or taken over, and with no trace."""

    def run(comm):
        for load, given in (("load_state_dict", [states[comm.rank]]), ("take_over", [[states[comm.rank]], 2])):
            with pytest.raises(ValueError, match=match):
                getattr(made := reducer_of(comm, **options), load)(*given)
            assert not made.residual.any()

    World(2).run(run)


# What an earlier release wrote otherwise, and the error
EARLIER = {
    "0.2": (
        lambda state: {key: state[key] for key in state if key not in (FORM, "version")},
        "load and save it once with sparse_mpi 0.3, then once with 0.4",
    ),
    "0.3": (
        lambda state: sealed(state | {"state": state["state"] | {"turn": 0}}),
        r"state\['state'\] must have .*; if sparse_mpi 0.3 wrote it, load and save it once with sparse_mpi 0.4",
    ),
    "0.3, two levels": (
        lambda state: sealed(state | {"algorithm": state["algorithm"] | {"ranks_per_node": 2}}),
        r"state\['algorithm'\] must be .*; if sparse_mpi 0.3 wrote it, load and save it once with sparse_mpi 0.4",
    ),
}


@pytest.mark.parametrize("release", EARLIER)
def test_a_state_of_an_earlier_release_names_the_release_that_converts_it(release):
    former, message = EARLIER[release]
    assert_refused(list(map(former, saved())), message)


def test_a_forged_layout_in_a_state_is_refused_by_name():
    """Rows of other shapes would be written outside of the vector."""
    states = saved(algorithm="adtopk")
    states[1]["state"]["layout"]["shapes"] = ((6, 5), (1_000_000_000,))
    assert_refused(states, r"state\['state'\]\['layout'\] must be Layout", algorithm="adtopk")
