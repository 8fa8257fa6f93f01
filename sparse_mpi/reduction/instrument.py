"""Measurements of an algorithm's selectors, wherever in it they are: how long they take and how much they select."""

from __future__ import annotations

from collections.abc import Sequence

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.algorithms.base import with_selectors
from sparse_mpi.arrays import Array
from sparse_mpi.select import Selector
from sparse_mpi.select.instrumented import Instrumented
from sparse_mpi.sparse import Layout


def instrument(algorithm: Algorithm) -> tuple[list[Instrumented], Algorithm]:
    """Return the algorithm with its selectors instrumented, its own or those of its parts; and these selectors."""
    selectors: list[Instrumented] = []

    def wrap(selector: Selector) -> Selector:
        selectors.append(Instrumented(selector))
        return selectors[-1]

    return selectors, with_selectors(algorithm, wrap)


def check_added(selectors: Sequence[Instrumented], algorithm: Algorithm, add: Array | None) -> None:
    """Raise RuntimeError unless ``selectors`` of ``algorithm`` added ``add`` to acc exactly once."""
    times = sum(selector.added for selector in selectors)
    if times != (add is not None):
        raise RuntimeError(
            f"{algorithm} must select once from acc in every step and hand `add` on, it did so {times} times"
        )


def unselected(algorithm: Algorithm, layout: Layout) -> int:
    """Return the number of elements that no selector looks at, because they are reduced without one."""
    if algorithm.parts:
        parts = [(part.algorithm, Layout(tuple(layout.shapes[t] for t in part.tensors))) for part in algorithm.parts]
        return sum(unselected(part, piece) for part, piece in parts)
    return 0 if instrument(algorithm)[0] else layout.size
