"""All-dimension selection (ADTopk, HPDC'24, DOI 10.1145/3625549.3658678): every row of every matrix has its own top-k.

Global top-k gives all entries to the rows with the largest gradients and leaves most output channels without an update
in most steps. Here each keeps at least one entry, and the rest of k is shared out in proportion to the rows' lengths.

Where this departs from the published program: quotas add up to k (there, each is rounded by itself), and what the floor
of one entry a row adds to k is reported rather than hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, namespace
from sparse_mpi.kernels.base import index_dtype
from sparse_mpi.rows import Matrix, Pattern, check_rule, fewest, quotas
from sparse_mpi.select.exact import top_k
from sparse_mpi.sparse import Layout, SparseVector, concatenate, take


@dataclass(frozen=True)
class AllDimState:
    """What the vector is made of."""

    layout: Layout


@dataclass(frozen=True)
class AllDim:
    """All-dimension selection (ADTopk, HPDC'24): the largest magnitudes of every row, in proportion to its length.

    Tensors of at least two dimensions are matrices of rows. Quotas add up to k; but every row has at least one entry
    and dense tensors have all, so that for small k the density is nominal: `floor` tells the count.

    Args:
        rows: ``"output"``: the first dimension tells rows apart, one is an output channel or unit; ``"axis1"`` (the
            published program): a row is a line along the second dimension, of a convolution one for each output
            channel and kernel position.
        dense: numbers of the tensors that are kept whole; None: those with fewer than two dimensions. A layout of one
            tensor says nothing about structure: with None, nothing of it is dense, and if flat it is one row.
    """

    rows: str = "output"
    dense: tuple[int, ...] | None = None

    band: ClassVar[tuple[float, float]] = (1.0, 1.0)
    shared: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_rule(self.rows)
        if self.dense is not None and not isinstance(self.dense, tuple):
            raise TypeError(f"dense must be a tuple of tensors' numbers, or None, got {self.dense!r}")

    def init(self, layout: Layout, k: int) -> Any:
        """The layout.

        Raises:
            ValueError: ``dense`` names tensors that it lacks.
        """
        fewest(layout, self.rows, self.dense)
        return AllDimState(layout)

    def select(self, x: Array, k: int, state: Any) -> tuple[SparseVector, Any]:
        """k entries of ``x`` ``(n,)``, or `floor`; of equal magnitudes in a row those of lower index."""
        return select_rows(x, self.pattern(k, state)), state

    def floor(self, layout: Layout) -> int:
        """The fewest entries that it selects, whatever k is."""
        return sum(tensor.entries for tensor in fewest(layout, self.rows, self.dense))

    def pattern(self, k: int, state: Any) -> Pattern:
        """How many entries of which rows the next step selects: the same on every rank."""
        return quotas(state.layout, k, self.rows, self.dense)

    def longest(self, layout: Layout, k: int) -> Pattern:
        """Of the patterns of all steps the one that makes the longest message."""
        return quotas(layout, k, self.rows, self.dense)

    def init_agreeing(self, layout: Layout, k: int) -> Any:
        """`init` for an algorithm that calls `agree` after every selection."""
        return self.init(layout, k)

    def agree(self, x: Array, k: int, state: Any, mean: Callable[[np.ndarray], np.ndarray]) -> Any:
        """The state in which all ranks decide alike; ``mean`` averages an array of float64 over the ranks."""
        return state

    def most_agreed(self, layout: Layout) -> int:
        """How many numbers `agree` averages at most."""
        return 0


def select_rows(x: Array, pattern: Pattern) -> SparseVector:
    """Of each row of ``x`` ``(n,)`` as many of the largest magnitudes as ``pattern`` says, of equal ones those of
    lower index; in index order."""
    parts = [_select_tensor(x, tensor) for tensor in pattern]
    return parts[0] if len(parts) == 1 else concatenate(parts)


def _select_tensor(x: Array, tensor: Matrix) -> SparseVector:
    """`select_rows` of one tensor of ``x``."""
    xp, dtype = namespace(x), index_dtype(len(x))
    own = x[tensor.offset : tensor.offset + tensor.size]
    if tensor.whole:
        return SparseVector(xp.arange(tensor.offset, tensor.offset + tensor.size, dtype=dtype), own.copy(), len(x))
    if tensor.rows == 1 and tensor.size > kernels.SMALL:
        found = top_k(own, tensor.quota)
        indices = found.indices.astype(dtype, copy=False)
        indices += dtype.type(tensor.offset)
        return SparseVector(indices, found.values, len(x))
    matrix = own.reshape(-1, tensor.length, tensor.stride).transpose(0, 2, 1).reshape(tensor.rows, tensor.length)
    parts = []
    for block in tensor.blocks:
        columns, values = kernels.of(x).top_k_rows(matrix[block.first : block.last], block.quota)
        columns = columns.astype(dtype)
        indices = tensor.starts(block, columns) + columns * dtype.type(tensor.stride)
        parts.append(SparseVector(indices.reshape(-1), values.reshape(-1), len(x)))
    found = concatenate(parts)
    return take(found, xp.argsort(found.indices)) if tensor.stride > 1 else found
