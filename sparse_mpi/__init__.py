"""Sparse allreduce over MPI: `sparse_allreduce` for one sum, `SparseAllreduce` for a training run.

For data that is sparse already, of any library: `allreduce`, `reduce`, `reduce_scatter`, `allgather`, and
`allreduce_init` where keys stay the same.

Importing this package imports none of mpi4py, cupy and torch, and does not start MPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparse_mpi.algorithms import ALGORITHMS as ALGORITHMS
    from sparse_mpi.algorithms import Reduction as Reduction
    from sparse_mpi.collectives import allgather as allgather
    from sparse_mpi.collectives import allreduce as allreduce
    from sparse_mpi.collectives import allreduce_init as allreduce_init
    from sparse_mpi.collectives import reduce as reduce
    from sparse_mpi.collectives import reduce_scatter as reduce_scatter
    from sparse_mpi.comm.conversion import watch as watch
    from sparse_mpi.comm.world import World as World
    from sparse_mpi.feedback import FEEDBACKS as FEEDBACKS
    from sparse_mpi.feedback import ErrorFeedback as ErrorFeedback
    from sparse_mpi.feedback import GlobalMomentum as GlobalMomentum
    from sparse_mpi.feedback import LeakyFeedback as LeakyFeedback
    from sparse_mpi.feedback import MomentumCorrection as MomentumCorrection
    from sparse_mpi.feedback import NoFeedback as NoFeedback
    from sparse_mpi.kernels.heap import keep_freed_memory as keep_freed_memory
    from sparse_mpi.monitor.step_report import StepReport as StepReport
    from sparse_mpi.reduction import SparseAllreduce as SparseAllreduce
    from sparse_mpi.reduction.once import sparse_allreduce as sparse_allreduce
    from sparse_mpi.select import SELECTORS as SELECTORS
    from sparse_mpi.sparse import Layout as Layout
    from sparse_mpi.sparse import SparseVector as SparseVector
    from sparse_mpi.training.diloco import DiLoCo as DiLoCo

__version__ = "0.5.0"

# Public names by the module that defines them, imported at the first use of one
HOME = {
    "algorithms": ("ALGORITHMS", "Reduction"),
    "collectives": ("allgather", "allreduce", "allreduce_init", "reduce", "reduce_scatter"),
    "comm.conversion": ("watch",),
    "comm.world": ("World",),
    "feedback": ("FEEDBACKS", "ErrorFeedback", "GlobalMomentum", "LeakyFeedback", "MomentumCorrection", "NoFeedback"),
    "kernels.heap": ("keep_freed_memory",),
    "reduction": ("SparseAllreduce",),
    "reduction.once": ("sparse_allreduce",),
    "monitor.step_report": ("StepReport",),
    "select": ("SELECTORS",),
    "sparse": ("Layout", "SparseVector"),
    "training.diloco": ("DiLoCo",),  # needs torch
}
LAZY = {name: module for module, names in HOME.items() for name in names}
__all__ = sorted({*LAZY} - {"DiLoCo"})
MODULES = (  # public, imported likewise
    "algorithms",
    "arrays",
    "checkpoint",
    "collectives",
    "comm",
    "contrib",
    "ddp",
    "fault_tolerance",
    "feedback",
    "optim",
    "predict",
    "select",
    "testing",
    "wire",
)
MOVED = "groupby_sum"  # now in `contrib`
REMOVED = "SparseReduceScatter"  # gone from `contrib`, which raises an error with the replacement


def __getattr__(name: str) -> Any:
    if name in LAZY:
        value = globals()[name] = getattr(import_module(f"{__name__}.{LAZY[name]}"), name)
        return value
    if name in MODULES:
        return import_module(f"{__name__}.{name}")
    if name == REMOVED:
        return getattr(import_module(f"{__name__}.contrib"), name)
    if name == MOVED:
        raise AttributeError(f"{__name__}.{name} is {__name__}.contrib.{name} since 0.4.0")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *LAZY, *MODULES, "__version__"})
