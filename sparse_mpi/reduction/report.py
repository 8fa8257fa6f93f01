"""Report what one step of a reducer did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add
from typing import NamedTuple

from sparse_mpi.algorithms import Reduction
from sparse_mpi.comm import Traffic
from sparse_mpi.select.instrumented import Instrumented
from sparse_mpi.sparse import SparseVector


class StepReport(NamedTuple):
    """The counts and times of one step on this rank."""

    selected: int  #: pairs picked by the selector, or by an algorithm without one; n for a dense algorithm
    total: int  #: entries of the result
    select_seconds: float  #: includes residual += gradient if the selector does it in the same pass
    exchange_seconds: float  #: time in communication calls, which includes waiting for slower ranks
    merge_seconds: float  #: all other time, for encoding, adding, error feedback
    traffic: Traffic  #: includes the consistency check of the step


def combined(reports: Iterable[StepReport | None]) -> StepReport | None:
    """Return the sums of what several reducers did in a step; None if none did anything."""
    done = [report for report in reports if report is not None]
    return reduce(lambda a, b: StepReport(*map(add, a, b)), done) if done else None


def summarise(
    reduction: Reduction, selectors: Sequence[Instrumented], unselected: int, seconds: float, traffic: Traffic
) -> StepReport:
    """Return the report of a step and reset the measurements of its selectors.

    Args:
        reduction: the result of the step.
        selectors: those that took part.
        unselected: the number of elements that were reduced without a selector.
        seconds: the duration of the step.
        traffic: what the step sent and received.
    """
    select = sum(selector.seconds for selector in selectors)
    selected = unselected + sum(selector.selected for selector in selectors)
    for selector in selectors:
        selector.reset()
    if not selectors and isinstance(reduction.sent, SparseVector):
        selected = reduction.sent.nnz  # chosen without a selector
    total = reduction.total.nnz if isinstance(reduction.total, SparseVector) else len(reduction.total)
    return StepReport(selected, total, select, traffic.seconds, seconds - select - traffic.seconds, traffic)
