"""Reduce one gradient: once with `sparse_allreduce`, or in every step of a training run with `SparseAllreduce`.

The folder is not called ``allreduce``, because that is the name of a function of the package.
"""

from __future__ import annotations

from sparse_mpi.reduction.once import sparse_allreduce
from sparse_mpi.reduction.reducer import SparseAllreduce
from sparse_mpi.reduction.report import StepReport

__all__ = ["SparseAllreduce", "StepReport", "sparse_allreduce"]
