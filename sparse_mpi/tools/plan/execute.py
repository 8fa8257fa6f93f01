"""A plan as an algorithm, ready for `SparseAllreduce`."""

from __future__ import annotations

import math

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.algorithms.hybrid import Fused, Hybrid
from sparse_mpi.tools.plan.base import Plan


def algorithm_of(plan: Plan) -> Hybrid:
    """Return the algorithm that carries out ``plan``.

    Its ``repr`` names every tensor, so that ranks with different plans refuse to start. A part gets its share of the
    step's k entries, which is exactly the plan's number where k is the plan's too.
    """
    size = sum(math.prod(shape) for _, shape in plan.tensors)
    k = max(1, round(plan.density * size))
    return Hybrid(
        tuple(
            Fused(ALGORITHMS[part.option](), part.tensors, min(part.k / k, 1.0), part.partitions) for part in plan.parts
        )
    )
