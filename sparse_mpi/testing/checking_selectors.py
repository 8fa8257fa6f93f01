"""Check a selector: form and number of entries, and that it is a function of vector and state."""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import numpy as np

from sparse_mpi.reduction.arguments import make_selector
from sparse_mpi.select.base import Selector, most_selected
from sparse_mpi.testing.cases import Case
from sparse_mpi.testing.steps import check_form, same_bytes
from sparse_mpi.testing.trials import Trial, Trials, demand

ON_ONE = Trials(ranks=(1,), seeds=(0, 1))


def check_selector(selector: Selector, trials: Trials = ON_ONE) -> None:
    """Raise `ConformanceError` unless the selector obeys all laws of its base class in 12 steps with error feedback.

    `check_algorithm` of a `TopkA` with this selector tells if ranks can work with it.
    """
    selector = make_selector(selector)
    trials.hold("check_selector", selector, lambda trial: _obey(selector, trial))


def _obey(selector: Selector, trial: Trial) -> None:
    case = trial.case
    state, x = selector.init(case.layout, min(case.k, case.n)), np.zeros(case.n, trial.dtype)
    for step in range(12):
        gradient = trial.gradient(0, step)
        state = _select(selector, case, x, gradient.astype(np.float16) if step % 3 == 2 else gradient, state)


def _select(selector: Selector, case: Case, x: np.ndarray, add: np.ndarray, state: Any) -> Any:
    """Add ``add`` to ``x``, take the selected entries out, and return the next state."""
    k, generators = min(case.k, case.n), _generators()
    another, copied, given, summed = deepcopy(selector), deepcopy(state), add.copy(), x + add.astype(x.dtype)
    chosen, following = selector.select(x, k, state, add)
    # Another instance gets a copy of the state, as in a resumed run, and the sum in place of its parts
    same, next_state = another.select(summed.copy(), k, deepcopy(copied))
    law = "a selection that depends on the vector and the state alone"
    demand(same_bytes(chosen, same), law, "the same of x + add by another instance", f"{chosen} and {same}")
    demand(repr(asdict(following)) == repr(asdict(next_state)), law, "the same next state", following)
    demand(_generators() == generators, law, "no use of global generators of random numbers", "another state of one")
    demand(x.tobytes() == summed.tobytes() and add.tobytes() == given.tobytes(), "add", "x += add, in place", x)
    check_form(chosen, case.n, x.dtype)
    demand(chosen.values.tobytes() == x[chosen.indices].tobytes(), "the values", "the ones of x", chosen)
    fewest, most = int(selector.band[0] * k), most_selected(selector, case.layout, k)
    if not selector.patterned and not selector.shared:
        fewest = min(fewest, int(np.count_nonzero(x)))
        demand((chosen.values != 0).all(), "the values", "no zeros", chosen)
    demand(fewest <= chosen.nnz <= most, "the band", f"{fewest} to {most:g} entries of k = {k}", chosen.nnz)
    if selector.shared:
        of_ones, _ = another.select(np.ones_like(x), k, deepcopy(copied))
        demand(same_bytes(chosen.indices, of_ones.indices), "shared positions", "the same of any vector", of_ones)
    if selector.patterned:
        entries = sum(matrix.entries for matrix in selector.pattern(k, copied))
        demand(chosen.nnz == entries, "the pattern", f"{entries} entries", chosen.nnz)
    x[chosen.indices] = 0
    return following


def _generators() -> str:
    return repr((np.random.get_state()[1].tolist(), random.getstate()))  # type: ignore[index] # noqa: NPY002
