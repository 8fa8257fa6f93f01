"""Make any torch optimizer step along gradients that are reduced over all ranks: `DistributedOptimizer`.

Names are Horovod's (Sergeev and Del Balso, 2018): a program changes in three lines. Arguments behind
``named_parameters`` are given by keyword.
"""

from __future__ import annotations

from sparse_mpi.training.broadcasts import broadcast_optimizer_state, broadcast_parameters
from sparse_mpi.training.distributed_optimizer import Average, DistributedOptimizer, Sum

__all__ = ["Average", "DistributedOptimizer", "Sum", "broadcast_optimizer_state", "broadcast_parameters"]
