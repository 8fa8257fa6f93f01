"""Add up sparse tensors exactly, row by row, as from embeddings with ``sparse=True``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_mpi.arrays import describe
from sparse_mpi.collectives import allreduce
from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import Handle
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.monitor.step_report import StepReport
from sparse_mpi.reduction.clipping import factor_of
from sparse_mpi.reduction.engine import NEWS, NOT_FINITE, Absence, StepRefused
from sparse_mpi.reduction.laws import raise_nonfinite
from sparse_mpi.training.hooks import DENSE, kind_of


class _RowSum(NamedTuple):
    """The result of a sum of sparse gradients: the same on all ranks but for the report."""

    sums: list[Tensor]  # COO tensors in host memory
    ranks: int  # number of ranks whose gradients are in it
    report: StepReport

    @property
    def norm(self) -> float:
        return math.sqrt(math.fsum(float(x._values().double().square().sum()) for x in self.sums)) / self.ranks


def staged(gradient: Tensor | None, like: Tensor, dim: int) -> Tensor | Exception:
    """Return a gradient, None: no entries, as a COO tensor in host memory without duplicates.

    Half precision is widened. Shape and dtype are ``like``'s. A gradient without ``dim`` sparse dimensions gives an
    error that all ranks are to raise.
    """
    wide = torch.promote_types(like.dtype, torch.float32)
    if gradient is None:
        at, values = torch.empty((dim, 0), dtype=torch.long), torch.empty((0, *like.shape[dim:]), dtype=wide)
        return torch.sparse_coo_tensor(at, values, like.shape, check_invariants=False, is_coalesced=True)
    if kind_of(gradient) != DENSE + dim:
        kind = f"one of {gradient.sparse_dim()} sparse dimensions" if gradient.is_sparse else "a dense tensor"
        return TypeError(
            f"the gradient of a parameter, {describe(like)}, must stay a sparse tensor of {dim} sparse "
            f"dimensions, as it was when it was seen first, got {kind}; use the parameter in the same way in all "
            "steps and on all ranks, or make it dense: nn.Embedding(sparse=False)"
        )
    unique = gradient.detach().coalesce()
    at, values = unique._indices().cpu(), unique._values().to(wide).cpu()
    return torch.sparse_coo_tensor(at, values, like.shape, check_invariants=False, is_coalesced=True)


def summed(
    own: Sequence[Tensor | Exception],
    comm: Comm,
    absence: Absence | None = None,
    skips: bool = False,
    unfit: bool = False,
) -> _RowSum:
    """Return the sums of `staged` gradients over the ranks, or raise an error among them on every rank. Collective.

    Args:
        own: gradients of this rank, or errors.
        comm: ranks.
        absence: learns which gradients no rank had; None: nobody asks.
        skips: True raises `StepRefused` on every rank if a gradient of any is not finite.
        unfit: True raises it anyway.
    """
    start, before = perf_counter(), comm.traffic.copy()
    absence = Absence(len(own)) if absence is None else absence
    # Agree: which rows to expect, and whether some rank's set of missing gradients differs from the last step's
    agreement, rows = same_on_all_ranks(comm), []
    with agreement as say:
        for one in own:
            if isinstance(one, Exception):
                raise one
            rows.append(one)
        say(sparse=[(tuple(one.shape), one.sparse_dim()) for one in rows])
        fit = not unfit and not (skips and not all(bool(one._values().isfinite().all()) for one in rows))
        agreement.flag = NEWS * absence.news(comm) if fit else NOT_FINITE
    if agreement.flag == NOT_FINITE:
        raise StepRefused(revised=False)
    if agreement.flag == NEWS:
        absence.agree(comm)
    sums = [allreduce(one, comm=comm) for one in rows]
    # Report: there is no selection, and every touched row is sent
    traffic = comm.traffic - before
    selected, total = (sum(one._values().numel() for one in several) for several in (rows, sums))
    seconds = perf_counter() - start - traffic.seconds
    return _RowSum(sums, comm.size, StepReport(selected, total, 0.0, traffic.seconds, seconds, traffic))


def refused_in(handle: Handle[_RowSum] | None) -> StepRefused | None:
    """Wait for sums, if any, and return the refusal of all ranks, if any."""
    try:
        if handle is not None:
            handle.wait()
    except StepRefused as refused:
        return refused
    except Exception:
        return None  # raised where the sums are taken
    return None


def mean_of(total: Tensor, like: Tensor, divisor: float) -> Tensor:
    values = (total._values() / divisor).to(dtype=like.dtype, device=like.device)
    at = total._indices().to(like.device)
    return torch.sparse_coo_tensor(at, values, like.shape, check_invariants=False, is_coalesced=True)


class SparseGradients:
    """Parameters with sparse tensors as gradients; their mean is clipped to ``max_norm`` by itself, if given."""

    def __init__(self, average: bool, max_norm: float | None = None, nonfinite: str = "keep") -> None:
        self.dims: dict[Tensor, int] = {}  # the parameters, and the sparse dimensions of each one's gradient
        self.objection: RuntimeError | None = None  # error that all ranks are to raise with the next sums
        self._absence = Absence(0)
        self.report: StepReport | None = None  # report of the last step
        self.unfit: bool = False  # other gradients of the step are not finite
        self._average, self._max_norm, self._nonfinite = average, max_norm, nonfinite
        self._handle: Handle[_RowSum] | None = None  # handle of the sums under way

    def add(self, dims: Mapping[Tensor, int], order: Iterable[Tensor]) -> None:
        """Take in parameters, with the sparse dimensions of their gradients; all are in this ``order`` then."""
        self.dims.update(dims)
        self.dims = {parameter: self.dims[parameter] for parameter in order if parameter in self.dims}
        # Parameters have new numbers: knowledge of absence was by the old ones
        self._absence = Absence(len(self.dims))

    @property
    def finite(self) -> bool:
        gradients = [p.grad for p in self.dims if p.grad is not None]
        return all(bool((g._values() if g.is_sparse else g).isfinite().all()) for g in gradients)

    @property
    def norm(self) -> float:
        """Wait for the sums, and return the L2 norm of the mean of all gradients together; 0 if there are none."""
        return self._handle.wait().norm if self._handle is not None else 0.0

    def start(self, begin: Callable[[Callable[[Comm], _RowSum]], Handle[_RowSum]]) -> None:
        """Add up the gradients as they are now, in the background: ``begin`` calls a function with the ranks."""
        if self.dims:
            own = [self.objection or staged(parameter.grad, parameter, dim) for parameter, dim in self.dims.items()]
            self.objection = None
            self._absence.here = [number for number, parameter in enumerate(self.dims) if parameter.grad is None]
            skips, unfit, self.unfit = self._nonfinite == "skip", self.unfit, False
            self._handle = begin(partial(summed, own, absence=self._absence, skips=skips, unfit=unfit))

    def refusal(self) -> StepRefused | None:
        """Wait for the sums, if started; return the refusal of all ranks, if any."""
        return refused_in(self._handle)

    def abandon(self) -> None:
        self.refusal()
        self._handle = None

    @torch.no_grad()
    def finish(self, factor: float = 1.0) -> None:
        """Wait for the sums, if started, and set ``.grad`` to their mean, or them, times ``factor``.

        None where no rank had a gradient. A sum with NaN or Inf raises FloatingPointError under ``nonfinite="raise"``.
        """
        handle, self._handle = self._handle, None
        if handle is None:
            return
        found = handle.wait()
        self.report = found.report
        for rows in found.sums if self._nonfinite == "raise" else ():
            raise_nonfinite(rows._values().numpy())
        if self._max_norm is not None:  # tables are clipped by themselves, as buckets are
            factor = factor_of(found.norm, self._max_norm)
        divisor = (found.ranks if self._average else 1.0) / factor
        for number, (parameter, rows) in enumerate(zip(self.dims, found.sums, strict=True)):
            given = parameter.requires_grad and number not in self._absence.everywhere
            parameter.grad = mean_of(rows, parameter, divisor) if given else None

    def clear(self) -> None:
        for parameter in self.dims:
            parameter.grad = None

    def fail(self) -> None:
        """Set ``.grad`` to a row of NaN: a loss scaler is to see the overflow."""
        self._handle = None
        for parameter, dim in self.dims.items():
            row = torch.full((1, *parameter.shape[dim:]), torch.nan)
            nan = torch.sparse_coo_tensor(torch.zeros((dim, 1), dtype=torch.long), row, parameter.shape)
            parameter.grad = mean_of(nan, parameter, 1.0) if parameter.requires_grad else None
