"""The verbs of the doors: each exists at every door, with one name and one meaning.

The object that has them is ``optimizer.reduction``, the `SparseState`, what `attach` returns, and the `DiLoCo`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from sparse_mpi.algorithms.topka import TopkA
from sparse_mpi.comm import NullComm
from sparse_mpi.reduction.laws import LawError
from sparse_mpi.training.parameters import local

from .calls import WHOLE, Program
from .check_door import HOOKS
from .doors import DOORS, Trainee

Make = Callable[..., Trainee]


VERBS: dict[str, Callable[[Make], None]] = {}


def verb(meaning: Callable[[Make], None]) -> Callable[[Make], None]:
    VERBS[meaning.__name__] = meaning
    return meaning


@dataclass(frozen=True)
class Loses(TopkA):
    """Sends half of what it says."""

    def reduce(self, *arguments: Any, **options: Any) -> Any:
        reduction, state = super().reduce(*arguments, **options)
        reduction.total.values[:] /= 2
        return reduction, state


@verb
def density(make: Make) -> None:
    """The share of entries of the next steps, if it is not the usual one."""
    trainee = make().steps([0])
    assert trainee.verbs.density is None and trainee.owed().any()
    trainee.verbs.density = 1.0
    assert not trainee.steps([1]).owed().any()


@verb
def check_every(make: Make) -> None:
    """Both laws are asserted in one step out of so many, 0 for never."""
    trainee = make(algorithm=Loses())
    assert trainee.verbs.check_every == 0
    trainee.steps(range(2)).verbs.check_every = 1
    with pytest.raises(LawError):
        trainee.steps([2])


@verb
def dense_steps(make: Make) -> None:
    """So many steps at the beginning send everything; an argument, too."""
    trainee = make(dense_steps=2)
    assert trainee.verbs.dense_steps == 2
    assert [bool(trainee.steps([number]).owed().any()) for number in range(4)] == [False, False, True, True]


@verb
def report(make: Make) -> None:
    """Of the last step, all vectors together."""
    trainee = make()
    assert trainee.verbs.report is None
    assert 0 < trainee.steps([0]).verbs.report.total < trainee.owed().size / 2


@verb
def watch(make: Make) -> None:
    """The quality of one step out of so many is measured, and is `quality`."""
    trainee = make()
    trainee.verbs.watch(2)
    assert trainee.verbs.quality is None
    known = [trainee.steps([number]).verbs.quality for number in range(3)]
    assert any(quality is not None for quality in known)
    with pytest.raises(ValueError, match="every must be at least 1"):
        trainee.verbs.watch(0)


def restored(make: Make, load: Callable[[Any, dict[str, Any]], None]) -> None:
    trainee, other = make().steps(range(3)), make()
    load(other.verbs, trainee.verbs.state_dict())
    assert trainee.owed().any() and other.owed().tobytes() == trainee.owed().tobytes()


@verb
def state_dict(make: Make) -> None:
    """Plain values and tensors."""

    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(isinstance(key, (str, int)) and plain(part) for key, part in value.items())
        if isinstance(value, (list, tuple)):
            return all(map(plain, value))
        return value is None or isinstance(value, (torch.Tensor, str, bytes, bool, int, float))

    assert plain(make().steps([0]).verbs.state_dict())


@verb
def load_state_dict(make: Make) -> None:
    restored(make, lambda verbs, state: verbs.load_state_dict(state))


@verb
def take_over(make: Make) -> None:
    """The states of ranks, and their number."""
    restored(make, lambda verbs, state: verbs.take_over([state], 1))


@verb
def detach(make: Make) -> None:
    """From then on training is torch's own."""
    trainee = make().steps(range(2))
    trainee.verbs.detach()
    before = trainee.own_weights()
    gradient = trainee.gradient(2, WHOLE)
    moved = before - trainee.steps([2]).own_weights()
    np.testing.assert_allclose(moved, trainee.optimizer.param_groups[0]["lr"] * gradient, rtol=1e-4, atol=1e-6)


@verb
def flush_without_a_step(make: Make) -> None:
    """They are in ``.grad`` then, and nothing has moved."""
    trainee = make().steps(range(3))
    trainee.zero_grad(True)
    before, owed = trainee.weights(), trainee.owed()
    trainee.verbs.flush(step=False)
    stepped = getattr(trainee.verbs, "outer", trainee.optimizer)
    gradients = torch.cat([local(p.grad).flatten() for group in stepped.param_groups for p in group["params"]])
    np.testing.assert_allclose(gradients, owed * trainee.lr / stepped.param_groups[0]["lr"])
    assert np.array_equal(trainee.weights(), before) and not trainee.owed().any()


@pytest.mark.parametrize(("name", "door"), [(name, door) for name in VERBS for door in DOORS])
def test_a_verb_has_one_name_and_one_meaning_at_every_door(
    name: str, door: str, request: pytest.FixtureRequest
) -> None:
    given = request.getfixturevalue("group") if door in HOOKS else NullComm()
    usual = Program(ranks=1, door=door, density=0.1)
    torch.manual_seed(0)

    def make(density: float = 0.1, algorithm: Any = "topka", **options: Any) -> Trainee:
        return DOORS[door](usual._replace(density=density, algorithm=algorithm, options=options), given)

    VERBS[name](make)
