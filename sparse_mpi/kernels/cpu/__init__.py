"""Kernels for host memory, compiled by Numba: one pass each, the GIL released, large vectors on several threads.

Inner loops run over slices (``part = bits[lo:hi]``), which Numba vectorises, not over computed bounds.
"""

from __future__ import annotations

from sparse_mpi.kernels.array import from_pairs, split_counts, to_pairs
from sparse_mpi.kernels.cpu.counts import count, histogram, moments
from sparse_mpi.kernels.cpu.equal_parts import add_parts, from_parts, select_parts
from sparse_mpi.kernels.cpu.late_adam import adam
from sparse_mpi.kernels.cpu.merging import merge, merge_loosely, merge_runs
from sparse_mpi.kernels.cpu.packing import (
    add_dealt,
    cast_votes,
    edges,
    lay_out,
    misplaced,
    numbers,
    read_messages,
    sizes,
    undeal,
    write_messages,
)
from sparse_mpi.kernels.cpu.pairs import (
    add,
    add_in_order,
    add_rows,
    among,
    clear,
    compress,
    contains,
    gather,
    mark,
    subtract,
    top_k_rows,
    truncate,
    truncate_least,
)
from sparse_mpi.kernels.cpu.passes import accumulate, accumulate_select, select, sketch
from sparse_mpi.kernels.cpu.rounding import (
    follow_squares,
    from_ballots,
    from_int8,
    from_levels,
    from_log4,
    subtract_dense,
    to_ballots,
    to_bfloat16,
    to_float16,
    to_int2,
    to_int4,
    to_int8,
    to_log4,
)
from sparse_mpi.kernels.cpu.standardizing import select_standardized, standardized
