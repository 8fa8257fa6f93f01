"""What one step of a reducer did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sparse_mpi.algorithms import Reduction
from sparse_mpi.comm import Traffic
from sparse_mpi.select.instrumented import Instrumented
from sparse_mpi.sparse import SparseVector


class StepReport(NamedTuple):
    """What one step did on this rank."""

    selected: int  # pairs the selector, or an algorithm without one, picked; n for a dense algorithm
    total: int  # entries of the result
    select_seconds: float  # residual += gradient included where the selector does it in the same pass
    exchange_seconds: float  # inside communication calls, waiting for slower ranks included
    merge_seconds: float  # all the rest: encoding, adding, error feedback
    traffic: Traffic  # of this step, the check that all ranks do the same included


def summarise(
    reduction: Reduction, selectors: Sequence[Instrumented], unselected: int, seconds: float, traffic: Traffic
) -> StepReport:
    """The report of a step that took so long and sent so much; the selectors' own count starts again.

    ``unselected`` elements were reduced without any of them having a look.
    """
    select = sum(selector.seconds for selector in selectors)
    selected = unselected + sum(selector.selected for selector in selectors)
    for selector in selectors:
        selector.reset()
    if not selectors and isinstance(reduction.sent, SparseVector):
        selected = reduction.sent.nnz  # chosen without a selector
    total = reduction.total.nnz if isinstance(reduction.total, SparseVector) else len(reduction.total)
    return StepReport(selected, total, select, traffic.seconds, seconds - select - traffic.seconds, traffic)
