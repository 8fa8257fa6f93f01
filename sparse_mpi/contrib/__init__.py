"""Tested additions whose interfaces may change: the library imports none of them.

`SparseReduceScatter` leaves each part of a sum with its owner. `groupby_sum` adds up frames of pandas, polars and
Arrow. `histogram_entries` lets `sparse_mpi.allreduce` take a histogram of boost-histogram. `ByteBudget` chooses the
density of each step by a budget of bytes.
"""

from sparse_mpi.contrib.byte_budget import ByteBudget
from sparse_mpi.contrib.groupby import groupby_sum
from sparse_mpi.contrib.histograms import histogram_entries
from sparse_mpi.contrib.reduce_scatter import SparseReduceScatter

__all__ = ["ByteBudget", "SparseReduceScatter", "groupby_sum", "histogram_entries"]
