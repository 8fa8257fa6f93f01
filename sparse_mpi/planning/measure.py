"""Measure in some seconds the fastest way to reduce a gradient on these ranks and their network.

Every way reduces Gaussian vectors of the gradient's length on all ranks, with error feedback. The time of a sparse
reduction is proportional to elements and entries, so more than two parts gain nothing: large tensors, and small ones,
left dense (ADTopk, HPDC'24, DOI 10.1145/3625549.3658678), as many as allowed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from time import perf_counter

import numpy as np

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.cli.progress import progress as behind_bar
from sparse_mpi.comm import Comm
from sparse_mpi.planning.base import DENSE, PARTIAL, Plan, PlannedPart
from sparse_mpi.planning.store import algorithm_of
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import ignores_k, spelled

OPTIONS = tuple(name for name, algorithm in ALGORITHMS.items() if algorithm().traits.in_default_plans)
WARMUP, REPEATS = 2, 3  # steps of a trial
MAX_SECONDS = 0.7  # a dense trial whose second step takes longer ends with it
GAIN = 1.05  # a plan must be this factor faster than dense


def measure(
    tensors: Iterable[tuple[str, Sequence[int]]],
    density: float,
    comm: Comm,
    *,
    options: Sequence[str] = OPTIONS,
    progress: bool = False,
) -> Plan:
    """Return the fastest plan for a gradient on the ranks of ``comm``, the same on all ranks. Collective.

    Args:
        tensors: name and shape of each, in the flat vector's order.
        density: share of the elements that sparse reductions send.
        comm: communicator of all ranks of the job.
        options: algorithms to choose from, as spelled on a command line; "dense" always is.
        progress: report progress on rank 0.

    Raises:
        ValueError: an option is no algorithm, or a tensor has no elements.
    """
    shapes = {name: tuple(shape) for name, shape in tensors}
    sizes = [math.prod(shape) for shape in shapes.values()]
    if 0 in sizes:
        empty = [*shapes][sizes.index(0)]
        raise ValueError(f"tensors must have elements, got {empty} without any; leave it out of the gradient")
    k = max(1, round(density * sum(sizes)))
    base = np.random.default_rng([sum(sizes), comm.rank]).standard_normal(sum(sizes), np.float32)
    names = [*dict.fromkeys((DENSE, *options))]
    sparse = [name for name in names if not ignores_k(spelled(name)[0])]
    seconds: dict[str, float] = {}

    def plan(way: str, *parts: PlannedPart) -> Plan:
        return Plan(shapes, comm.size, density, way, parts, seconds)

    plans = {name: plan(name, PlannedPart(name, tuple(range(len(sizes))))) for name in names}
    for name in behind_bar(names, "measuring reductions", progress and comm.rank == 0):
        seconds[name] = _trial(plans[name], k, base, comm, brief=name not in sparse)
    if sparse and (small := _small(sizes, k // 2)):
        fastest = min(sparse, key=seconds.__getitem__)
        large = tuple(number for number in range(len(sizes)) if number not in small)
        left = k - sum(sizes[number] for number in small)
        plans[PARTIAL] = plan(PARTIAL, PlannedPart(DENSE, small), PlannedPart(fastest, large, left / k))
        seconds[PARTIAL] = _trial(plans[PARTIAL], k, base, comm)
    best = min(seconds, key=seconds.__getitem__)
    return plans[DENSE if seconds[DENSE] <= GAIN * seconds[best] else best]


def _small(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    order = np.argsort(sizes, kind="stable")
    count = np.searchsorted(np.cumsum(np.take(sizes, order)), most, side="right")
    return tuple(sorted(order[:count].tolist()))


def _trial(plan: Plan, k: int, base: np.ndarray, comm: Comm, brief: bool = False) -> float:
    reducer = SparseAllreduce([*plan.tensors.values()], k=k, comm=comm, algorithm=algorithm_of(plan))
    taken: list[float] = []
    for step in range(WARMUP + REPEATS):
        gradient = np.roll(base, step)
        comm.barrier()
        start = perf_counter()
        reducer.step(gradient)
        taken.append(float(comm.allreduce(np.array([perf_counter() - start]), "max", control=True)[0]))
        if brief and step and taken[step] > MAX_SECONDS:
            break
    return statistics.median(taken[WARMUP:] or taken[1:])
