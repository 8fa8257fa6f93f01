"""Measure in a few seconds what every option costs on this machine and network, by trial steps and a fit.

Every option reduces Gaussian vectors, as long as a few, many and all of the tensors, over the real communicator, on all
ranks at once, with error feedback. The seconds of phases are means over the ranks, because the time that one rank waits
in the exchange is time that another one computes. Rank 0's numbers are broadcast, so that all ranks fit, and plan,
alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations
from time import perf_counter

import numpy as np

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.checks import present
from sparse_mpi.cli.progress import progress as behind_bar
from sparse_mpi.comm import Comm
from sparse_mpi.comm.network import MIN_SECONDS, Network
from sparse_mpi.planning.base import Option, PhaseCost, Profile, Tensor
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import ignores_k
from sparse_mpi.sparse import Layout

OPTIONS = tuple(name for name, algorithm in ALGORITHMS.items() if algorithm().traits.in_default_plans)
PHASES = ("select", "exchange", "merge")
WARMUP, REPEATS = 2, 3  # steps of a trial
MAX_FIRST_SECONDS = 0.7  # a dense trial whose first step takes longer has no other step


def measure(
    tensors: Sequence[Tensor],
    density: float,
    comm: Comm,
    *,
    options: Sequence[str] = OPTIONS,
    before: float = 0.0,
    backward: float = 0.0,
    update: float = 0.0,
    progress: bool = False,
) -> Profile:
    """Return the profile of a job on the ranks of ``comm``. A collective call, with the same result on all ranks.

    Args:
        tensors: of the gradient, in the order of the flat vector.
        density: share of the elements that sparse reductions send.
        comm: communicator of all ranks of the job.
        options: names of algorithms to choose from; "dense" is always among them.
        before: seconds that a step computes before the backward pass.
        backward: seconds of the backward pass.
        update: seconds of the optimizer's step.
        progress: show a progress bar on rank 0 if tqdm is installed.

    Raises:
        ValueError: an option is no algorithm, or a tensor has no elements.
    """
    if empty := [tensor.name for tensor in tensors if tensor.size == 0]:
        raise ValueError(f"tensors must have elements, got {empty[0]} without any; leave it out of the gradient")
    if unknown := sorted(set(options) - set(ALGORITHMS)):
        raise ValueError(f"options must be among {', '.join(ALGORITHMS)}, got {', '.join(unknown)}")
    names = [*dict.fromkeys(("dense", *options))]
    size = sum(tensor.size for tensor in tensors)
    base = np.random.default_rng([size, comm.rank]).standard_normal(size, np.float32)
    points = _points(tensors, density)
    trials = [(name, layout, k) for name in names for layout, k in points]
    shown = behind_bar(trials, "measuring reductions", progress and comm.rank == 0)
    seconds = np.array([_trial(name, base[: layout.size], layout, k, comm) for name, layout, k in shown])
    mean = comm.allreduce(seconds, control=True) / comm.size
    agreed = comm.bcast(np.append(mean, _gather_seconds(base)), control=True)
    costs = agreed[:-1].reshape(len(names), len(points), len(PHASES))
    lengths, entries = [layout.size for layout, _ in points], [k for _, k in points]
    fitted = []
    for name, cost in zip(names, costs, strict=True):
        dense = ignores_k(name)
        sent = [0] * len(entries) if dense else entries
        fitted.append(Option(name, dense, *(fit(lengths, sent, phase) for phase in cost.T)))
    # An allreduce sends 2 ceil(log2 P) messages and 2(P-1)/P of its bytes.
    exchange, others = fitted[0].exchange, comm.size - 1
    alpha = exchange.fixed / (2 * others.bit_length()) if others else 0.0
    beta = exchange.per_element * comm.size / (8 * others) if others else 0.0
    network, gather = Network(alpha, beta), float(agreed[-1])
    return Profile(tuple(tensors), comm.size, density, before, backward, update, network, tuple(fitted), gather)


def fit(elements: Sequence[float], entries: Sequence[float], seconds: Sequence[float]) -> PhaseCost:
    """Return the cost without negative coefficients whose relative error at the measured ``seconds`` is least.

    Least squares is solved for every subset of the three coefficients, and the best non-negative solution is taken.
    """
    measured = np.asarray(seconds, np.float64)
    # Weigh by 1 / seconds, for relative errors, and scale the columns, so that the system is well conditioned.
    columns = np.column_stack([np.ones(len(measured)), elements, entries])
    weights = 1 / np.maximum(measured, MIN_SECONDS)
    scale = columns.max(axis=0, initial=0)
    scale[scale == 0] = 1
    system, target = columns / scale * weights[:, None], measured * weights
    best, least = np.zeros(3), float(target @ target)
    for chosen in (list(subset) for count in (1, 2, 3) for subset in combinations(range(3), count)):
        found, *_ = np.linalg.lstsq(system[:, chosen], target, rcond=None)
        error = float(((system[:, chosen] @ found - target) ** 2).sum())
        if (found >= 0).all() and error < least * (1 - 1e-9):
            best, least = np.zeros(3), error
            best[chosen] = found
    return PhaseCost(*(float(value) for value in best / scale))


def _points(tensors: Sequence[Tensor], density: float) -> list[tuple[Layout, int]]:
    """Return layouts of the first tensors and numbers of entries to try.

    They are as few as tell the costs of a call, an element and an entry apart: about 4,096 elements; an eighth of all
    elements, at two densities; and all elements. Tensors are taken whole, so that there may be one more.
    """
    ends = np.cumsum([tensor.size for tensor in tensors])
    points = []
    for least, share in ((4096, density), (ends[-1] / 8, density), (ends[-1] / 8, density / 4), (ends[-1], density)):
        count = min(int(np.searchsorted(ends, least)) + 1, len(tensors))
        layout = Layout(tuple(tensor.shape for tensor in tensors[:count]))
        points.append((layout, max(1, round(share * layout.size))))
    return points


def _trial(name: str, base: np.ndarray, layout: Layout, k: int, comm: Comm) -> list[float]:
    reducer = SparseAllreduce(layout, k=k, comm=comm, algorithm=name)
    taken: list[list[float]] = []
    for step in range(WARMUP + REPEATS):
        gradient = np.roll(base, step)
        comm.barrier()
        start = perf_counter()
        reducer.step(gradient)
        slowest = comm.allreduce(np.array([perf_counter() - start]), "max", control=True)[0]
        report = present(reducer.report, "a step was made")
        taken.append([report.select_seconds, report.exchange_seconds, report.merge_seconds])
        if step == 0 and slowest > MAX_FIRST_SECONDS and ignores_k(name):
            break
    return [statistics.median(phase) for phase in zip(*(taken[WARMUP:] or taken), strict=True)]


def _gather_seconds(base: np.ndarray) -> float:
    """Measure the seconds an element that it takes to copy tensors that are not neighbours into one vector."""
    half = len(base) // 2 or 1
    for _ in range(2):  # the first one faults pages in
        start = perf_counter()
        np.concatenate([base[:half:], base[half:]])
        seconds = perf_counter() - start
    return seconds / len(base)
