"""All-dimension selection (ADTopk, HPDC'24, DOI 10.1145/3625549.3658678): every row of every matrix has its own top-k.

Global top-k gives all entries to the rows with the largest gradients: most output channels lack an update in most
steps. Here each row has at least one entry, and the rest of k is shared out in proportion to rows' lengths.

Departs from the published program: quotas add up to k, not rounded one by one; entries above k, due to the minimum of
one a row, are reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, index_dtype, is_device, namespace
from sparse_mpi.checks import check_whole
from sparse_mpi.rows import Matrix, Pattern, check_rule, fewest, quotas, row_tables
from sparse_mpi.select.base import Selector, accumulate
from sparse_mpi.select.exact import top_k
from sparse_mpi.sparse import Layout, SparseVector, concatenate, take

LONGEST = 1 << 22  # elements of a row that one block of threads selects from


@dataclass(frozen=True)
class _AllDimState:
    layout: Layout


@dataclass(frozen=True)
class AllDim(Selector):
    """All-dimension selection (ADTopk, HPDC'24): the largest magnitudes of every row, in proportion to its length.

    Tensors of at least two dimensions are matrices of rows. Every row has at least one entry and dense tensors have
    all, so a small k is only nominal: `floor` is the least count.

    Args:
        rows: ``"output"``: each index of the first dimension is a row, an output channel or unit. ``"axis1"`` (the
            published program): each line along the second dimension is a row, one for each output channel and kernel
            position of a convolution.
        dense: numbers of the tensors that are selected whole; None: tensors of fewer than two dimensions, but none in a
            layout of one tensor, which says nothing about structure; a flat tensor is one row then.
    """

    rows: str = "output"
    dense: tuple[int, ...] | None = None

    patterned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_rule(self.rows)
        if self.dense is not None and not isinstance(self.dense, tuple):
            raise TypeError(f"dense must be a tuple of tensors' numbers, or None, got {self.dense!r}")
        for tensor in self.dense or ():
            check_whole("dense", tensor, 0, remedy="it has the numbers of tensors")

    def init(self, layout: Layout, k: int) -> Any:
        fewest(layout, self.rows, self.dense)  # raises if ``dense`` names tensors that the layout lacks
        return _AllDimState(layout)

    def select(self, x: Array, k: int, state: Any, add: Array | None = None) -> tuple[SparseVector, Any]:
        accumulate(x, add)
        return select_rows(x, self.pattern(k, state)), state

    def floor(self, layout: Layout) -> int:
        return sum(tensor.entries for tensor in fewest(layout, self.rows, self.dense))

    def pattern(self, k: int, state: Any) -> Pattern:
        return quotas(state.layout, k, self.rows, self.dense)

    def longest(self, layout: Layout, k: int) -> Pattern:
        return quotas(layout, k, self.rows, self.dense)


def select_rows(x: Array, pattern: Pattern) -> SparseVector:
    """Select each row's entries of largest magnitude from ``x`` ``(n,)``, in the numbers of ``pattern``.

    The lower index wins a tie. Entries are in index order.
    """
    parts = []
    for together, tensors in groupby(pattern, lambda tensor: is_device(x) and _selected_together(tensor)):
        if together:
            group = tuple(tensor if tensor.stride == 1 else tensor.merged() for tensor in tensors)
            found = kernels.device().select_rows(x, row_tables(group), sum(tensor.entries for tensor in group))
            parts.append(SparseVector(*found, len(x)))
        else:
            parts += [_select_tensor(x, tensor) for tensor in tensors]
    return parts[0] if len(parts) == 1 else concatenate(parts)


def _selected_together(tensor: Matrix) -> bool:
    """Tell if a device selects from this tensor and others in one launch, each row by a block of threads."""
    return tensor.whole or (tensor.stride == 1 and tensor.length <= LONGEST)


def _select_tensor(x: Array, tensor: Matrix) -> SparseVector:
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
