"""Measure the selections of a step, and report the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from sparse_mpi.algorithms import Algorithm, Reduction
from sparse_mpi.algorithms.base import with_selectors
from sparse_mpi.arrays import Array
from sparse_mpi.comm import Traffic
from sparse_mpi.monitor.step_report import StepReport
from sparse_mpi.select.base import Selector, Wrapper
from sparse_mpi.sparse import Layout, SparseVector


class Instrumented(Wrapper):
    """Measures the selections of the wrapped selector.

    Attributes:
        seconds: time of all selections since the last `reset`.
        added: selections that added a gradient to their vector.
        span: start and end of the last selection, in `time.perf_counter` seconds.
    """

    def __init__(self, selector: Selector) -> None:
        super().__init__(selector)
        self.span = (0.0, 0.0)
        self.reset()

    def reset(self) -> None:
        self.seconds, self.selected, self.added = 0.0, 0, 0

    def select(self, x: Array, k: int, state: object, add: Array | None = None) -> tuple[SparseVector, Any]:
        """Return the wrapped selector's selection; work queued on a device seems to take no time."""
        return self._measured(self.selector.select, x, k, state, add)

    def select_standardized(
        self, x: Array, squares: Array, k: int, state: Any, add: Array | None = None
    ) -> tuple[SparseVector, Any]:
        return self._measured(self.selector.select_standardized, x, squares, k, state, add)

    def _measured(self, select: Callable[..., tuple[SparseVector, Any]], *given: object) -> tuple[SparseVector, Any]:
        start = perf_counter()
        result, state = select(*given)
        self.span = start, perf_counter()
        self.seconds += self.span[1] - start
        self.selected += result.nnz
        self.added += given[-1] is not None
        return result, state


def instrument(algorithm: Algorithm) -> tuple[list[Instrumented], Algorithm]:
    selectors: list[Instrumented] = []

    def wrap(selector: Selector) -> Selector:
        selectors.append(Instrumented(selector))
        return selectors[-1]

    return selectors, with_selectors(algorithm, wrap)


def check_added(selectors: Sequence[Instrumented], algorithm: Algorithm, add: Array | None) -> None:
    """Raise RuntimeError unless ``selectors`` added ``add`` to acc exactly once."""
    times = sum([selector.added for selector in selectors])
    if times != (add is not None):  # True counts as 1: once if there is something to add, else never
        raise RuntimeError(
            f"{algorithm} must select once from acc in every step and hand `add` on, it did so {times} times"
        )


def unselected(algorithm: Algorithm, layout: Layout) -> int:
    if algorithm.parts:
        # Parts reduce some tensors each, with or without a selector
        parts = [(part.algorithm, Layout(tuple(layout.shapes[t] for t in part.tensors))) for part in algorithm.parts]
        return sum(unselected(part, piece) for part, piece in parts)
    return 0 if instrument(algorithm)[0] else layout.size


def summarise(
    reduction: Reduction, selectors: Sequence[Instrumented], unselected: int, seconds: float, traffic: Traffic
) -> StepReport:
    select, selected = 0.0, unselected
    for selector in selectors:
        select += selector.seconds
        selected += selector.selected
        selector.reset()
    if not selectors and isinstance(reduction.sent, SparseVector):
        selected = len(reduction.sent.indices)  # chosen without a selector
    total = len(reduction.total.indices if isinstance(reduction.total, SparseVector) else reduction.total)
    return StepReport(selected, total, select, traffic.seconds, seconds - select - traffic.seconds, traffic)
