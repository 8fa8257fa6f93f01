"""Sums of dense and of sparse data."""

from __future__ import annotations

from collections import Counter

import numpy as np
from typing_extensions import assert_type

import sparse_mpi
from sparse_mpi import Reduction, SparseAllreduce, SparseVector, StepReport, World
from sparse_mpi.algorithms import Algorithm, OkTopk
from sparse_mpi.collectives import PersistentAllreduce
from sparse_mpi.comm import Comm, Traffic, as_comm
from sparse_mpi.contrib import groupby_sum
from sparse_mpi.select import Exact

Floats = np.ndarray[tuple[int], np.dtype[np.float32]]


def once(comm: Comm) -> int:
    x = np.arange(100, dtype=np.float32)
    reduction = sparse_mpi.sparse_allreduce(x, k=10, comm=comm, algorithm=OkTopk(period=32))
    assert_type(reduction, Reduction[Floats])
    total = reduction.total
    return total.nnz if isinstance(total, SparseVector) else len(total)


def steps(comm: Comm) -> int:
    reducer = SparseAllreduce([(10, 10)], density=0.1, comm=comm, algorithm="topka", selector=Exact())
    assert_type(reducer, SparseAllreduce)
    assert_type(reducer.algorithm, Algorithm)
    assert_type(reducer.step(np.ones(100, np.float32), k=5), SparseVector[Floats] | Floats)
    waiting = reducer.start(np.ones(100, np.float32))
    assert_type(waiting.wait(), SparseVector[Floats] | Floats)
    assert_type(reducer.report, StepReport | None)
    assert reducer.report is not None
    assert_type(reducer.report.traffic, Traffic)
    assert_type(reducer.report.traffic.sent, int)
    return reducer.k


def of_words(comm: Comm) -> Counter[str]:
    total = sparse_mpi.allreduce(Counter(["a", "b", "a"]), comm=comm)  # the kind of what is given
    return assert_type(total, Counter[str])


def of_pairs(comm: Comm) -> int:
    pairs = np.array([1, 5]), np.array([0.5, 2.0])
    sparse_mpi.reduce(pairs, root=0, op="max", comm=comm)
    found: list[tuple[np.ndarray, np.ndarray]] = [*sparse_mpi.allgather(pairs, comm)]
    return len(found)


class Table:
    """What `groupby_sum` gets it returns, here of a class that it does not know."""


def of_frames(comm: Comm) -> Table:
    return assert_type(groupby_sum(Table(), ["city", "day"], "kWh", comm, scatter=True), Table)


def of_fixed_keys(comm: Comm) -> np.ndarray:
    plan = sparse_mpi.allreduce_init(np.array([1, 5]), np.array([5]), comm=comm)
    assert_type(plan, PersistentAllreduce)
    plan.start(np.array([0.5, 2.0]))
    plan.wait()
    return plan.found


def main() -> list[int]:
    def rank(comm: Comm) -> int:
        return once(as_comm(comm)) + steps(comm) + of_words(comm)["a"] + of_pairs(comm) + len(of_fixed_keys(comm))

    return assert_type(World(3).run(rank), list[int])
