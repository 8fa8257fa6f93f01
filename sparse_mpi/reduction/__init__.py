"""Reduce one gradient in every step of a training run: `SparseAllreduce`; or once: `once.sparse_allreduce`."""

from __future__ import annotations

from sparse_mpi.monitor.step_report import StepReport
from sparse_mpi.reduction.reducer import SparseAllreduce

__all__ = ["SparseAllreduce", "StepReport"]
