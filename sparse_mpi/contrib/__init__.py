"""Additions that work and are tested, without the promise that their interfaces stay: nothing else imports them.

`SparseReduceScatter` leaves each part of a sum with its owner. `groupby_sum` adds up frames of pandas, polars and
Arrow. `histogram_entries` lets `sparse_mpi.allreduce` take a histogram of boost-histogram. `ByteBudget` says the
density of each step so that a rank sends what a budget allows.
"""

from sparse_mpi.contrib.byte_budget import ByteBudget
from sparse_mpi.contrib.groupby import groupby_sum
from sparse_mpi.contrib.histograms import histogram_entries
from sparse_mpi.contrib.reduce_scatter import SparseReduceScatter

__all__ = ["ByteBudget", "SparseReduceScatter", "groupby_sum", "histogram_entries"]
