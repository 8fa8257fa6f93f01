"""What an algorithm's selectors do, wherever in it they are: how long they take and how much they select."""

from __future__ import annotations

from dataclasses import replace

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.select.timed import Timed
from sparse_mpi.sparse import Layout


def watch(algorithm: Algorithm) -> tuple[list[Timed], Algorithm]:
    """The algorithm with its selectors timed: its own, or those of the parts it is made of."""
    if hasattr(algorithm, "selector"):
        timed = Timed(algorithm.selector)
        return [timed], replace(algorithm, selector=timed)  # type: ignore[type-var]
    if hasattr(algorithm, "inner"):
        watching, inner = watch(algorithm.inner)
        return watching, replace(algorithm, inner=inner)  # type: ignore[type-var]
    if not hasattr(algorithm, "parts"):
        return [], algorithm
    watched = [watch(part.algorithm) for part in algorithm.parts]
    parts = [replace(part, algorithm=made) for part, (_, made) in zip(algorithm.parts, watched, strict=True)]
    return sum((timed for timed, _ in watched), []), replace(algorithm, parts=tuple(parts))  # type: ignore[type-var]


def unselected(algorithm: Algorithm, layout: Layout) -> int:
    """How many elements no selector looks at, because they are reduced densely."""
    if hasattr(algorithm, "parts"):
        dense = [part for part in algorithm.parts if not hasattr(part.algorithm, "selector")]
        return sum(layout.sizes[tensor] for part in dense for tensor in part.tensors)
    return 0 if hasattr(getattr(algorithm, "inner", algorithm), "selector") else layout.size
