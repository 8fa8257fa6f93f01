"""Steps of an algorithm with error feedback, and the laws that hold for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.comm.base import rounds
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.laws import check_agreement, check_conservation
from sparse_mpi.sparse import SparseVector
from sparse_mpi.testing.cases import Case
from sparse_mpi.testing.trials import demand
from sparse_mpi.wire import pair_bytes


class Step(NamedTuple):
    """The data of one step on one rank."""

    total: Any
    given: np.ndarray  # (n,) the loss of its acc
    report: Any
    nonzero: int  # entries of its acc


def taken(reducer: SparseAllreduce, case: Case, dtype: Any, seeds: Iterable[int], check: bool = True) -> list[Step]:
    """Have a reducer make the steps of ``seeds``; `LawError` unless both laws hold, with ``check``."""
    seen, comm, traits = [], reducer.comm, reducer.engine.exchange.placed.traits
    for seed in seeds:
        gradient = case.gradient(dtype, seed, comm.rank, comm.size)
        acc = reducer.residual.astype(dtype) + gradient
        total = reducer.step(gradient)
        with np.errstate(invalid="ignore"):
            given = acc - reducer.residual
        seen.append(Step(total, given, reducer.report, int(np.count_nonzero(acc))))
        if check:
            check_agreement(total, comm)
        if check and traits.conserves:
            check_conservation(total, given, acc, comm, traits.rounds_relative_to_norm)
    return seen


def dense_of(total: Any) -> np.ndarray:
    return total.to_dense() if isinstance(total, SparseVector) else total


def same_bytes(a: Any, b: Any) -> bool:
    """Tell if arrays, or tuples and lists with arrays, have the same types, shapes and bytes."""
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(same_bytes, a, b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return bool(a == b)


def check_form(vector: Any, size: int, dtype: Any) -> None:
    """Indices are int32 and ascend in [0, n), values have the type of the gradient."""
    found = [vector.indices, vector.values] if isinstance(vector, SparseVector) else [np.arange(len(vector)), vector]
    good = getattr(vector, "size", len(vector)) == size and found[1].dtype == dtype and len(found[0]) == len(found[1])
    good &= found[0].dtype == (np.int32 if isinstance(vector, SparseVector) else np.intp)
    ends = np.concatenate([[-1], found[0], [size]])
    demand(good and (np.diff(ends) > 0).all(), "the form", f"size {size}, {np.dtype(dtype)}, int32 ascending", vector)


def check_nonfinite(total: Any, algorithm: Algorithm, case: Case, finite: Any) -> None:
    """Non-finite entries of a gradient show in total, and no others: in products of matrices the tensor may."""
    shown, may = np.isfinite(dense_of(total)), ~finite
    if algorithm.traits.rounds_relative_to_norm:
        may = np.repeat([(~finite[part]).any() for part in case.layout.parts], case.layout.sizes)
    good = not shown[~finite].any() and shown[~may].all()
    places = np.flatnonzero(~finite)
    demand(good, "NaN and Inf", f"NaN or Inf at {places}, as in a gradient", f"at {np.flatnonzero(~shown)}")


def check_counts(seen: Sequence[Sequence[Step]], algorithm: Algorithm, case: Case, dtype: Any) -> None:
    """Traffic is within the declared bound, if any, and numbers of entries are within their bands."""
    k, ranks, layout = min(case.k, case.n), len(seen), case.layout
    limits = [(0.0, np.inf)] * 3
    try:
        bound = algorithm.bound(layout, k, ranks)
        payload = bound.payload(pair_bytes(case.n, dtype), np.dtype(dtype).itemsize)
        # Messages and bytes with which the ranks make sure that they do the same come on top
        limits = [(0, payload), (0, bound.messages + 2 * rounds(ranks)), (0, bound.control + 32)]
    except NotImplementedError:
        pass
    bands = [*limits, algorithm.result_band(layout, k, ranks), algorithm.selected_band(layout, k, ranks)]
    names = ["bound(): bytes", "bound(): messages", "bound(): bytes of control", "result_band()", "selected_band()"]
    for rank, steps in enumerate(seen):
        for number, step in enumerate(steps):
            report, traffic = step.report, step.report.traffic
            numbers = [traffic.sent, traffic.messages, traffic.control, report.total, report.selected]
            for name, (least, most), found in zip(names, bands, numbers, strict=True):
                least = min(least, step.nonzero)  # zeros need not be in
                demand(least <= found <= most, name, f"{least:g} to {most:g}", f"{found} in step {number}, rank {rank}")
