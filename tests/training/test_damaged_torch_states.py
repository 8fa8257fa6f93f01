"""A damaged state of a torch model's reduction is refused on all ranks alike, by the name of what is damaged."""

from __future__ import annotations

import pytest
import torch

from sparse_mpi import World
from sparse_mpi.arrays import as_arrays
from sparse_mpi.comm import NullComm
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.reduction.form import sealed

from ..reduction.damage import check_all
from .calls import Program
from .doors import DOORS
from .loops import net, wrapped

DAMAGED = [
    ("optimizer", 2),
    ("local", 1),
    pytest.param("local", 2, marks=pytest.mark.full("most of a minute; 1 damages each key")),
]


@pytest.mark.parametrize(("door", "deep"), DAMAGED)
def test_a_damaged_state_is_refused_by_name(door, deep):
    fragments = {"fragments": 2, "fragment_sync_delay": 1} if door == "local" else {}

    class Restored:
        """What a rank trains with, and the methods that load a state."""

        def __init__(self, comm):
            program = Program(door=door, density=0.1, algorithm="elect", every=4, outer="outer", options=fragments)
            self.trainee = DOORS[door](program, comm)

        def __getattr__(self, name):
            return getattr(self.trainee.verbs, name)

    saved = World(2).run(lambda comm: Restored(comm).trainee.steps(range(5)).verbs.state_dict())
    check_all(saved, Restored, lambda made, rank: made.trainee.steps(range(5, 9)), ("take_over",), deep=deep)


FORGED = {
    "vectors": lambda state: state["vectors"].__setitem__(1, 7),
    "vectors no dict": lambda state: state["vectors"].__setitem__(0, {"names": 0.5, "reducer": {}}),
    "name": lambda state: state["vectors"][0]["names"].__setitem__(0, 10**5000),
    "kinds": lambda state: state["kinds"].__setitem__("layers.0.bias", 2),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_state_is_refused_in_words(what):
    def body(comm):
        trainee = DOORS["optimizer"](Program(density=0.1), comm).steps(range(2))
        trainee.zero_grad(True)
        state = as_arrays(trainee.verbs.state_dict())
        FORGED[what](state)
        with pytest.raises((TypeError, ValueError), match=rf"state(\['{what.split()[0]}|.*once, got a int that)"):
            trainee.verbs.load_state_dict(sealed(state))

    World(2).run(body)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("door", ["optimizer", "local"])
def test_a_file_of_an_earlier_step_is_refused_on_any_number_of_ranks(door, ranks):
    """Also of a step with as many synchronisations of local steps."""
    program = Program(door=door, density=0.1, every=4)
    files = [
        World(3).run(lambda comm, n=steps: DOORS[door](program, comm).steps(range(n)).verbs.state_dict())
        for steps in (6, 5)
    ]
    for stale in range(3):
        states = [files[rank == stale][rank] for rank in range(3)]

        def body(comm, states=states):
            with pytest.raises(ValueError, match="steps"):
                DOORS[door](program, comm).verbs.take_over(states[comm.rank :: comm.size], 3)

        World(ranks).run(body)


def test_states_of_release_0_3_are_refused_with_the_release_that_converts_them():
    """Buckets had no names there, and Adam kept a number of steps alone."""
    with pytest.raises(ValueError, match="must be 4, got None; .* load and save it once with sparse_mpi 0.4"):
        wrapped(net(), NullComm()).reduction.load_state_dict(sealed({"buckets": [], "kinds": []}))
    model = net()
    optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters()), comm=NullComm())
    state = optimizer.state_dict() | {"state": {0: {"step": torch.tensor(3.0)}}}
    with pytest.raises(ValueError, match="got 'step' alone; .* load and save it once with sparse_mpi 0.4"):
        optimizer.load_state_dict(state)
    assert not optimizer.state


@pytest.mark.parametrize("door", ["optimizer", "local"])
def test_states_of_arrays_as_earlier_releases_saved_them_are_read(door):
    def body(comm):
        straight, resumed = (DOORS[door](Program(door=door, density=0.1, every=2), comm) for _ in range(2))
        straight.steps(range(3))
        resumed.net.load_state_dict(straight.net.state_dict())
        resumed.verbs.load_state_dict(as_arrays(straight.verbs.state_dict()))
        return straight.steps(range(3, 6)).own_weights(), resumed.steps(range(3, 6)).own_weights()

    for whole, rest in World(2).run(body):
        assert whole.tobytes() == rest.tobytes()
