"""Check an algorithm: the two laws, bounds, the order of arrival and resumption, on gradients of all kinds."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

import numpy as np

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.comm import Comm
from sparse_mpi.comm.world import World
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import make_algorithm
from sparse_mpi.testing.steps import Step, check_counts, check_form, check_nonfinite, same_bytes, taken
from sparse_mpi.testing.trials import Trial, Trials, demand

EVERYTHING = Trials()
HALF = 2  # steps of a trial


def check_algorithm(algorithm: Algorithm, trials: Trials = EVERYTHING) -> None:
    """Raise `ConformanceError` unless the algorithm obeys all laws of its base class, with error feedback.

    - Agreement: ``total`` has the same bytes on every rank. Nothing is lost: it is the sum of the ranks' sent entries.
    - It has the same bytes in whatever order messages come, and in a resumed run.
    - Traffic is within `bound`, if there is one; counts are within `result_band` and `selected_band`.
    - NaN and Inf show in the total of the same step. An algorithm that chooses entries without their values cannot do
      that: leave out the cases with "nonfinite".
    """
    algorithm = make_algorithm(algorithm, {})
    trials.hold("check_algorithm", algorithm, lambda trial: _obey(algorithm, trial))


def _obey(algorithm: Algorithm, trial: Trial) -> None:
    ranks, case, dtype, seed = trial
    begun, rest = range(seed, seed + HALF), range(seed + HALF, seed + 2 * HALF)

    def made(comm: Comm) -> SparseAllreduce:  # reducer of a copy: attributes of the instance are no state
        return SparseAllreduce(case.layout, k=case.k, comm=comm, algorithm=deepcopy(algorithm))

    def interrupted(comm: Comm) -> tuple[list[Step], list[Step]]:
        """Return all steps, and the second half again by a resumed reducer."""
        reducer, resumed = made(comm), made(comm)
        before = taken(reducer, case, dtype, begun)
        resumed.load_state_dict(reducer.state_dict())
        return before + taken(reducer, case, dtype, rest), taken(resumed, case, dtype, rest)

    seen, resumed = zip(*ranks.run(interrupted), strict=True)
    for number, step in enumerate(seen[0]):
        check_form(step.total, case.n, dtype)
        if algorithm.selector is None or not algorithm.selector.shared:  # a shared selector looks at no value
            finite = np.isfinite([trial.gradient(rank, number) for rank in range(ranks.size)]).all(axis=0)
            check_nonfinite(step.total, algorithm, case, finite)
    check_counts(seen, ranks.run(lambda comm: made(comm).engine.exchange.placed)[0], case, dtype)
    _compare([steps[HALF:] for steps in seen], resumed, "resumption", "as without an interruption")
    if isinstance(ranks, World) and ranks.schedule is None:
        whole = range(begun.start, rest.stop)
        mixed = World(ranks.size, ranks.per_node, schedule=seed).run(
            lambda comm: taken(made(comm), case, dtype, whole, check=False)
        )
        _compare(seen, mixed, "independence of the order of arrival", f"as in World({ranks.size}, schedule={seed})")


def _compare(some: Iterable[list[Step]], others: Iterable[list[Step]], law: str, text: str) -> None:
    for rank, pair in enumerate(zip(some, others, strict=True)):
        for one, other in zip(*pair, strict=True):
            same = same_bytes(one.total, other.total) and one.given.tobytes() == other.given.tobytes()
            demand(same and one.report.traffic.sent == other.report.traffic.sent, law, text, f"others on rank {rank}")
