"""Collectives of data that is sparse already: keys and values, of any kind of container."""

from sparse_mpi.collectives.calls import allgather, allreduce, reduce, reduce_scatter
from sparse_mpi.collectives.choice import Choice
from sparse_mpi.collectives.persistent import PersistentAllreduce, allreduce_init

__all__ = [
    "Choice",
    "PersistentAllreduce",
    "allgather",
    "allreduce",
    "allreduce_init",
    "reduce",
    "reduce_scatter",
]
