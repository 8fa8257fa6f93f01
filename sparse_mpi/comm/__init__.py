"""The transport: the `Comm` protocol, how to get one, and its implementations.

`mpi`, `process_group` and `nccl` load on first use: the import starts neither MPI nor torch.
"""

from __future__ import annotations

from sparse_mpi.comm.base import Comm, Counts, Traffic
from sparse_mpi.comm.conversion import as_comm
from sparse_mpi.comm.null import NullComm

__all__ = ["Comm", "Counts", "NullComm", "Traffic", "as_comm"]
