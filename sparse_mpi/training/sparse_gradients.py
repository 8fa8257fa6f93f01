"""Add up gradients that are sparse tensors exactly, row by row: those of embeddings with ``sparse=True``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparse_mpi.arrays import describe
from sparse_mpi.collectives import allreduce
from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import Handle
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.monitor.step_report import StepReport
from sparse_mpi.reduction.clipping import factor_of
from sparse_mpi.reduction.engine import Absence
from sparse_mpi.reduction.laws import raise_nonfinite
from sparse_mpi.training.hooks import DENSE, Arrivals, kind_of


class Rows(NamedTuple):
    """The gradient of one parameter, or a sum of such, in host memory."""

    keys: np.ndarray  # (m,) int64, places in the sparse dimensions, row by row
    values: np.ndarray  # (m, ...), at least float32
    table: tuple[int, ...]  # the sparse dimensions
    problem: str = ""  # why the gradient cannot be added up


class RowSum(NamedTuple):
    """What a sum of sparse gradients came to: the same on all ranks but for the report."""

    sums: list[Rows]
    ranks: int  # whose gradients are in it
    report: StepReport

    @property
    def norm(self) -> float:
        squares = [float(np.square(rows.values, dtype=np.float64).sum()) for rows in self.sums]
        return math.sqrt(math.fsum(squares)) / self.ranks


def staged(gradient: Tensor | None, like: Tensor, dim: int) -> Rows:
    """Return a gradient as rows in host memory; half precision is widened.

    On a device it is valid in the order of the caller's stream, and only rows that were touched leave that.

    Args:
        gradient: a COO tensor, which need not be coalesced; None stands for one without entries.
        like: a tensor of the same shape, dtype and device, the same on all ranks.
        dim: the number of sparse dimensions.
    """
    wide, table = torch.promote_types(like.dtype, torch.float32), tuple(like.shape[:dim])
    nothing = Rows(np.empty(0, np.int64), torch.empty((0, *like.shape[dim:]), dtype=wide).numpy(), table)
    if gradient is None:
        return nothing
    if kind_of(gradient) != DENSE + dim:
        kind = f"one of {gradient.sparse_dim()} sparse dimensions" if gradient.is_sparse else "a dense tensor"
        return nothing._replace(
            problem=f"the gradient of a parameter, {describe(like)}, must stay a sparse tensor of {dim} sparse "
            f"dimensions, as it was when it was seen first, got {kind}; use the parameter in the same way in all "
            "steps and on all ranks, or make it dense: nn.Embedding(sparse=False)"
        )
    # Members with an underscore are there too where a tensor is not coalesced
    at, values = gradient._indices(), gradient._values().detach().to(wide)
    # On the gradient's device: a row that occurs several times leaves it once
    if not gradient.is_coalesced():
        unique = torch.sparse_coo_tensor(at, values, gradient.shape, check_invariants=False).coalesce()
        at, values = unique._indices(), unique._values()
    keys = np.ravel_multi_index(tuple(at.cpu().numpy()), table).astype(np.int64)
    return Rows(keys, values.cpu().numpy(), table)


def summed(own: Sequence[Rows], comm: Comm, absence: Absence | None = None) -> RowSum:
    """Return the sums over the ranks of what each has `staged`, of the same parameters in the same order. Collective.

    ``absence``, if given, knows afterwards which of the gradients no rank had.

    Raises:
        TypeError, ValueError: a gradient is dense, or has other sparse dimensions; raised on every rank.
    """
    start, before = perf_counter(), comm.traffic.copy()
    absence = Absence(len(own)) if absence is None else absence
    # Agree: which rows to expect, and whether any rank lacks other gradients than in the step before
    agreement = same_on_all_ranks(comm)
    with agreement as say:
        for rows in own:
            if rows.problem:
                raise TypeError(rows.problem)
        say(sparse=[(rows.table, rows.values.shape[1:]) for rows in own])
        agreement.flag = absence.news(comm)
    if agreement.flag:
        absence.agree(comm)
    # Add up: one allreduce for each shape and dtype of rows
    sums = list(own)
    for numbers in _alike(own):
        for number, rows in zip(numbers, _added([own[number] for number in numbers], comm), strict=True):
            sums[number] = rows
    # Report: there is no selection, and every row that was touched is sent
    traffic = comm.traffic - before
    selected, total = (sum(rows.values.size for rows in several) for several in (own, sums))
    seconds = perf_counter() - start - traffic.seconds
    return RowSum(sums, comm.size, StepReport(selected, total, 0.0, traffic.seconds, seconds, traffic))


def mean_of(rows: Rows, like: Tensor, divisor: float) -> Tensor:
    at = np.stack(np.unravel_index(rows.keys, rows.table))
    values = torch.from_numpy(np.ascontiguousarray(rows.values)) / divisor
    return torch.sparse_coo_tensor(
        torch.from_numpy(at).to(like.device),
        values.to(dtype=like.dtype, device=like.device),
        like.shape,
        check_invariants=False,
        is_coalesced=True,
    )


def _alike(own: Sequence[Rows]) -> Iterator[list[int]]:
    kinds = [(rows.values.shape[1:], rows.values.dtype) for rows in own]
    for kind in dict.fromkeys(kinds):
        yield [number for number, other in enumerate(kinds) if other == kind]


def _added(own: Sequence[Rows], comm: Comm) -> list[Rows]:
    # Shift: the keys of each table get a range of their own
    starts = np.cumsum([0, *(math.prod(rows.table) for rows in own)])
    keys = np.concatenate([rows.keys + start for rows, start in zip(own, starts[:-1], strict=True)])
    keys, values = allreduce((keys, np.concatenate([rows.values for rows in own])), comm=comm)
    # Cut: the sums come in the order of their keys, so that each range is one slice
    ends = np.searchsorted(keys, starts)
    parts = zip(own, starts[:-1], ends[:-1], ends[1:], strict=True)
    return [Rows(keys[low:high] - start, values[low:high], rows.table) for rows, start, low, high in parts]


class SparseGradients:
    """The parameters whose gradients are sparse tensors; their mean is clipped to ``max_norm`` by itself, if given."""

    def __init__(self, passes: int, average: bool, max_norm: float | None = None, raises: bool = False) -> None:
        self.dims: dict[Tensor, int] = {}  # the parameters, and the sparse dimensions of each one's gradient
        self.arrivals: Arrivals = Arrivals((), passes)
        self._absence = Absence(0)
        self.report: StepReport | None = None  # of the last step
        self._average, self._max_norm, self._raises = average, max_norm, raises
        self._handle: Handle[RowSum] | None = None  # of the sums under way

    def add(self, dims: Mapping[Tensor, int], order: Iterable[Tensor]) -> None:
        """Take in parameters, with the sparse dimensions of their gradients; all stand in the ``order`` of these then.

        So the order is the same on all ranks, and in a run that resumes.
        """
        self.dims.update(dims)
        self.dims = {parameter: self.dims[parameter] for parameter in order if parameter in self.dims}
        # Parameters have new numbers: what the ranks knew of absence was by the old ones
        self._absence = Absence(len(self.dims))
        for parameter in dims:
            self.arrivals.expect(parameter)

    def kind(self, parameter: Tensor) -> int:
        return DENSE + self.dims[parameter]

    def arrive(self, parameter: Tensor, look: bool) -> None:
        """Count a backward pass of a parameter."""
        self.arrivals.count(parameter)

    @property
    def finite(self) -> bool:
        gradients = [p.grad for p in self.dims if p.grad is not None]
        return all(bool((g._values() if g.is_sparse else g).isfinite().all()) for g in gradients)

    @property
    def norm(self) -> float:
        """Return the L2 norm of the mean of all gradients together, once their sum is there; 0 if there are none."""
        return self._handle.wait().norm if self._handle is not None else 0.0

    def start(self, begin: Callable[[Callable[[Comm], RowSum]], Handle[RowSum]]) -> None:
        """Add up the gradients as they are now, in the background: ``begin`` calls a function with the ranks."""
        if self.dims:
            own = [staged(parameter.grad, parameter, dim) for parameter, dim in self.dims.items()]
            self._absence.here = [number for number, parameter in enumerate(self.dims) if parameter.grad is None]
            self._handle = begin(partial(summed, own, absence=self._absence))

    @torch.no_grad()
    def finish(self, factor: float = 1.0) -> None:
        """Wait for the sums, if they were started, and set ``.grad`` to their mean, or them, times ``factor``.

        It becomes None where no rank had a gradient.

        Raises:
            FloatingPointError: a sum has NaN or Inf, if that is to be raised.
            Exception: as `summed` does.
        """
        handle, self._handle = self._handle, None
        if handle is None:
            return
        found = handle.wait()
        self.report = found.report
        for rows in found.sums if self._raises else ():
            raise_nonfinite(rows.values)
        # Tables are clipped by themselves where buckets are; else factor is that of the whole gradient
        if self._max_norm is not None:
            factor = factor_of(found.norm, self._max_norm)
        divisor = (found.ranks if self._average else 1.0) / factor
        for number, (parameter, rows) in enumerate(zip(self.dims, found.sums, strict=True)):
            given = parameter.requires_grad and number not in self._absence.everywhere
            parameter.grad = mean_of(rows, parameter, divisor) if given else None

    def clear(self) -> None:
        for parameter in self.dims:
            parameter.grad = None

    def fail(self) -> None:
        """Set ``.grad`` to a row of NaN, so that a loss scaler sees that gradients overflowed."""
        for parameter, dim in self.dims.items():
            row = np.full((1, *parameter.shape[dim:]), np.nan, np.float32)
            rows = Rows(np.zeros(1, np.int64), row, tuple(parameter.shape[:dim]))
            parameter.grad = mean_of(rows, parameter, 1.0) if parameter.requires_grad else None
