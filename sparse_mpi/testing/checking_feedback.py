"""Check a feedback rule: only declared losses, and all its arrays are resumed, dealt out and flushed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparse_mpi.comm import Comm
from sparse_mpi.comm.world import World
from sparse_mpi.feedback import Feedback
from sparse_mpi.feedback.base import whole_state
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import make_feedback
from sparse_mpi.testing.steps import same_bytes
from sparse_mpi.testing.trials import Trial, Trials, demand

ON_FEW = Trials(ranks=(1, 2, 3, 5))
# Steps of another density, a sum of all entries, and one without a gradient in the middle
WAYS: tuple[dict[str, Any], ...] = ({}, {"dense": True}, {}, {"density": 0.3}, {})
BEHIND = 3  # steps after which a run is resumed


def check_feedback(rule: Feedback, trials: Trials = ON_FEW) -> None:
    """Raise `ConformanceError` unless the rule does all that `Feedback` says, with Ok-Topk."""
    rule = make_feedback(rule, None)
    trials.hold("check_feedback", rule, lambda trial: _obey(rule, trial))


def _obey(rule: Feedback, trial: Trial) -> None:
    case = trial.case

    def made(comm: Comm) -> SparseAllreduce:
        return SparseAllreduce(case.layout, k=case.k, comm=comm, algorithm="oktopk", feedback=rule)

    def saved(comm: Comm) -> dict[str, Any]:
        reducer = made(comm)
        for step in range(BEHIND):
            reducer.step(case.gradient(trial.dtype, trial.seed + step, comm.rank, 2))
        return reducer.state_dict()

    def trained(comm: Comm) -> dict[str, bytes]:
        reducer, resumed = made(comm), made(comm)
        for step, way in enumerate(WAYS):
            gradient = trial.gradient(comm.rank, step)
            given = gradient.tobytes()
            if step == BEHIND:
                resumed.load_state_dict(reducer.state_dict())
            total = reducer.step(gradient, check=True, **way)
            remembered = whole_state(reducer.feedback)
            if step >= BEHIND:
                same = same_bytes(total, resumed.step(gradient, **way))
                same &= _bytes(remembered) == _bytes(whole_state(resumed.feedback))
                demand(same, "resumption", f"the bytes of a run that is not, on rank {comm.rank}", remembered)
            finite = all(np.isfinite(array).all() for array in remembered.values())
            demand(finite, "NaN and Inf", "none of them to be stored", remembered)
            demand(gradient.tobytes() == given, "the gradient", "as it was given", gradient)
            own: Any = getattr(total, "values", total)
            own[:] = -1  # the caller may change its array
        _flush(reducer)
        # All ranks take over the states of two
        reducer.take_over(states[comm.rank :: comm.size], 2)
        for name, kept in reducer.feedback.state().items():
            before, now = sum(state[name].astype(float) for state in states), comm.allreduce(kept.astype(float))
            text = f"arrays {name!r} of two ranks to be dealt out with the same sum, {before}"
            demand(np.allclose(now, before, 1e-4, 1e-4 * np.abs(before).max()), "additive states", text, now)
        return _bytes(reducer.feedback.state(replicated=True))

    states = World(2).run(saved)
    replicated = trial.ranks.run(trained)
    for rank, own in enumerate(replicated):
        demand(own == replicated[0], "state(replicated=True)", "the same on all ranks", f"another one on rank {rank}")


def _flush(reducer: SparseAllreduce) -> None:
    if reducer.feedback.traits.defers:
        owed = reducer.comm.allreduce(reducer.residual)
        flushed = reducer.flush(check=True)
        demand(np.allclose(flushed, owed, 1e-4, 1e-4 * np.abs(owed).max()), "flush", f"residuals, {owed}", flushed)
    else:
        try:
            reducer.flush()
        except ValueError:
            return
        demand(False, "flush", "ValueError, for the rule defers nothing", "no error")


def _bytes(arrays: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}
