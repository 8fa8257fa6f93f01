"""Tested additions with interfaces that may change: the library imports none.

`groupby_sum` adds up frames of pandas, polars and Arrow. `histogram_entries` lets `sparse_mpi.allreduce` take a
histogram of boost-histogram. `ByteBudget` chooses each step's density by a budget of bytes.
"""

from typing import NoReturn

from sparse_mpi.contrib.byte_budget import ByteBudget
from sparse_mpi.contrib.groupby import groupby_sum
from sparse_mpi.contrib.histograms import histogram_entries

__all__ = ["ByteBudget", "groupby_sum", "histogram_entries"]


def __getattr__(name: str) -> NoReturn:
    if name == "SparseReduceScatter":
        # An AttributeError would lose its text in "from sparse_mpi.contrib import SparseReduceScatter"
        raise ImportError(
            f"{__name__}.{name} was removed in 0.5.0: cut the sum that SparseAllreduce returns to this rank's entries, "
            "or shard the model with FSDP2 (sparse_mpi.fsdp); for sparse data there is sparse_mpi.reduce_scatter"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
