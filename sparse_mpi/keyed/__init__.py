"""Collectives of data that is sparse already: keys and values, whatever holds them."""

from sparse_mpi.keyed.calls import allgather, allreduce, reduce, reduce_scatter
from sparse_mpi.keyed.choice import Choice

__all__ = ["Choice", "allgather", "allreduce", "reduce", "reduce_scatter"]
