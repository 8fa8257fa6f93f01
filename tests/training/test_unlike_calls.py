"""A call of one rank beside another call of the others: one error in words on all ranks, and nobody waits."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from .calls import Call, Program
from .check_door import UNLIKE
from .doors import DOORS, Trainee

Does = Callable[[Trainee, dict[str, Any]], Any]
GROUP = [Call("add_group"), Call("backward", 0)]
CALLS: dict[str, Does] = {
    **UNLIKE,
    "synchronize": lambda one, state: one.synchronize(),
    "flush without a step": lambda one, state: one.verbs.flush(step=False),
    "take_over": lambda one, state: one.verbs.take_over([state], one.comm.size),
    "check_every": lambda one, state: (setattr(one.verbs, "check_every", 1), one.steps([7])),
    "density": lambda one, state: (setattr(one.verbs, "density", 0.5), one.steps([7])),
    "add_param_group": lambda one, state: one.steps([7], *GROUP),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "second moments": {"optimizer": "adamw", "algorithm": "elect"},
    "momentum": {"optimizer": "momentum", "algorithm": "oktopk"},
    "clipped": {"options": {"clip_norm": 1.0}},
    "clipped as a whole": {"options": {"clip_norm": 1.0}, "overlap": False},
    "scaled": {"scaled": True},
    "tables": {"optimizer": "adagrad", "net": "tables"},
}
ONLY = {"local": ("plain", "second moments", "momentum", "clipped")}
CELLS = [(door, how) for door in ("optimizer", "local") for how in ONLY.get(door, SETTINGS)]


@pytest.mark.ranks(3)
@pytest.mark.parametrize("warm", [0, 3, 1])
@pytest.mark.parametrize(("door", "how"), CELLS)
def test_a_call_of_one_rank_is_refused_in_words_on_all(
    ranks: Any, door: str, how: str, warm: int, request: pytest.FixtureRequest
) -> None:
    calls = [name for name in CALLS if name != "add_param_group" or (door, how) < ("optimizer", "tables")]
    calls = [name for name in calls if name != "add_param_group" or door == "optimizer"]
    pairs = list(permutations(calls, 2))
    if request.config.getoption("--tier") == "fast":  # each with a step, and with the next one
        pairs = [(one, other) for one, other in pairs if one == "step" or calls.index(other) == calls.index(one) + 1]
    program = Program((), 3, density=0.1, door=door, **{"algorithm": "topka"} | SETTINGS[how])
    for pair in pairs:

        def body(comm: Any, pair: tuple[str, str] = pair) -> str:
            trainee = DOORS[door](program, comm).steps(range(warm))
            trainee.zero_grad(True)
            state = trainee.verbs.state_dict()
            try:
                CALLS[pair[comm.rank == comm.size - 1]](trainee, state)
            except (ValueError, RuntimeError) as error:
                return str(error)
            return ""

        said = ranks.run(body)
        # Calls that have the same effect may go on, on both ranks
        assert all(said) or not any(said), (pair, said)
        assert all(re.search("must|all ranks", text) for text in said if text), (pair, said)
