"""sparse_mpi: sparse allreduce over MPI. `sparse_allreduce` for one sum, `SparseAllreduce` for a training run.

Importing this package imports none of mpi4py, cupy and torch, and does not start MPI.
"""

from __future__ import annotations

from sparse_mpi.algorithms import ALGORITHMS, Reduction
from sparse_mpi.comm.world import World
from sparse_mpi.feedback import MEMORIES, ErrorFeedback, MomentumCorrection, NoFeedback
from sparse_mpi.reducer import SparseAllreduce
from sparse_mpi.reducer.once import sparse_allreduce
from sparse_mpi.reducer.report import StepReport
from sparse_mpi.rows import dimension_coverage
from sparse_mpi.select import SELECTORS
from sparse_mpi.sparse import Layout, SparseVector

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "MEMORIES",
    "SELECTORS",
    "ErrorFeedback",
    "Layout",
    "MomentumCorrection",
    "NoFeedback",
    "Reduction",
    "SparseAllreduce",
    "SparseVector",
    "StepReport",
    "World",
    "dimension_coverage",
    "sparse_allreduce",
]
