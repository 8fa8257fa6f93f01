"""The tensors of a gradient as matrices, and the number of selected entries of each row (ADTopk, HPDC'24).

Neither counts nor row numbers are sent: from shapes and k every rank knows the row of each entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from sparse_mpi import arrays
from sparse_mpi.arrays import Array, namespace
from sparse_mpi.kernels.base import LONG
from sparse_mpi.sparse import Layout

RULES = ("output", "axis1")


class Block(NamedTuple):
    """Neighbouring rows of a tensor with one quota."""

    first: int  # number of its first row
    last: int  # number of the row after its last one
    quota: int  # entries selected of each row


class Matrix(NamedTuple):
    """A tensor as a matrix, and the number of selected entries of each row.

    Element c of row j is element ``j // stride * stride * length + j % stride + c * stride`` of the tensor.
    """

    tensor: int  #: number of the tensor in the layout
    offset: int  #: index of its first element in the flat vector
    rows: int  #: number of rows
    length: int  #: elements of a row
    stride: int  #: distance in the tensor from one element of a row to the next
    quota: int  #: entries selected of a row
    extra: int = 0  #: number of rows, from the first on, of which one entry more is selected

    @property
    def size(self) -> int:
        return self.rows * self.length

    @property
    def entries(self) -> int:
        return self.rows * self.quota + self.extra

    @property
    def whole(self) -> bool:
        return self.entries == self.size

    @property
    def blocks(self) -> Iterator[Block]:
        """Iterate over blocks of one quota: rows with an extra entry, if any, and then the others."""
        if self.extra:
            yield Block(0, self.extra, self.quota + 1)
        yield Block(self.extra, self.rows, self.quota)

    def starts(self, block: Block, like: Array) -> Array:
        """Return the flat index of the first element of each row of a block ``(rows, 1)``, in the dtype of ``like``."""
        numbers = namespace(like).arange(block.first, block.last, dtype=like.dtype).reshape(-1, 1)
        if self.stride == 1:
            return self.offset + numbers * self.length
        return self.offset + numbers // self.stride * (self.stride * self.length) + numbers % self.stride

    def numbers(self, indices: Array) -> Array:
        inside = indices - self.offset
        if self.stride == 1:
            return inside // self.length
        return inside // (self.stride * self.length) * self.stride + inside % self.stride

    def merged(self) -> Matrix:
        return self._replace(rows=1, length=self.size, stride=1, quota=self.entries, extra=0)


Pattern = tuple[Matrix, ...]  # the tensors that have elements, in the order of the flat vector


def check_rule(rows: str) -> None:
    if not isinstance(rows, str) or rows not in RULES:
        raise ValueError(
            f"rows must be one of {', '.join(RULES)}, got {rows!r}; output makes each output channel a row, axis1 each "
            "line along the second axis"
        )


def dense_tensors(layout: Layout, dense: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the numbers of tensors that are selected whole: ``dense``, which must be of the layout.

    None: all tensors with fewer than two dimensions, but none of a layout of one tensor.
    """
    if dense is None:
        flat = tuple(number for number, shape in enumerate(layout.shapes) if len(shape) < 2)
        return flat if len(layout.shapes) > 1 else ()
    if wrong := [number for number in dense if not 0 <= number < len(layout.shapes)]:
        raise ValueError(
            f"dense must have numbers of tensors, 0 to {len(layout.shapes) - 1} in this layout, got {wrong}; "
            "pass the shapes of all tensors as layout"
        )
    return dense


@lru_cache(maxsize=64)
def fewest(layout: Layout, rows: str, dense: tuple[int, ...] | None) -> Pattern:
    """Return the pattern of one entry of every row, and all of dense tensors; see `quotas` for the arguments."""
    whole = frozenset(dense_tensors(layout, dense))
    return tuple(
        Matrix(number, offset, 1, size, 1, size)
        if number in whole
        else Matrix(number, offset, *_rows_of(shape, rows), 1)
        for number, (shape, offset, size) in enumerate(zip(layout.shapes, layout.offsets, layout.sizes, strict=True))
        if size
    )


def _rows_of(shape: tuple[int, ...], rows: str) -> tuple[int, int, int]:
    if len(shape) < 2:
        return 1, prod(shape), 1
    if rows == "output":
        return shape[0], prod(shape[1:]), 1
    stride = prod(shape[2:])
    return shape[0] * stride, shape[1], stride


@lru_cache(maxsize=64)
def quotas(layout: Layout, k: int, rows: str = "output", dense: tuple[int, ...] | None = None) -> Pattern:
    """Return the pattern that shares k entries out among rows in proportion to length, at least one each.

    Fractions are rounded by largest remainder; of equal ones the lower row's goes first. Where `fewest` has more than k
    already, that is the pattern. ``rows`` is one of `RULES`.
    """
    pattern = fewest(layout, rows, dense)
    if k <= sum(tensor.entries for tensor in pattern):
        return pattern
    shared = _shared_out(k - sum(t.entries for t in pattern if t.whole), [t for t in pattern if not t.whole])
    return tuple(shared.get(t.tensor, t) for t in pattern)


def _shared_out(left: int, tensors: list[Matrix]) -> dict[int, Matrix]:
    while True:
        total = sum(t.size for t in tensors)
        enough = [t for t in tensors if left * t.length >= total]
        if len(enough) == len(tensors):
            break
        left -= sum(t.rows for t in tensors if left * t.length < total)
        tensors = enough
    over = left - sum(t.rows * (left * t.length // total) for t in tensors)
    shared = {}
    for t in sorted(tensors, key=lambda t: (-(left * t.length % total), t.offset)):
        quota, more = left * t.length // total, min(over, t.rows)
        over -= more
        shared[t.tensor] = t._replace(quota=quota + more // t.rows, extra=more % t.rows)
    return shared


def row_starts(pattern: Pattern, like: Array) -> Array:
    """Return the flat index of each selected entry's row, row after row; not to be written to."""
    return arrays.constant(_row_starts(pattern, like.dtype), like)


@lru_cache(maxsize=4)
def _row_starts(pattern: Pattern, dtype: np.dtype) -> np.ndarray:
    starts = np.empty(sum(t.entries for t in pattern), dtype)
    at = 0
    for tensor in pattern:
        for block in tensor.blocks:
            part = slice(at, at + (block.last - block.first) * block.quota)
            starts[part].reshape(-1, block.quota)[:] = tensor.starts(block, starts)
            at = part.stop
    return starts


@lru_cache(maxsize=8)
def row_tables(pattern: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """Return short and long rows of a pattern without strides, see `DeviceKernels.select_rows`."""
    table, row, at = np.empty((sum(tensor.rows for tensor in pattern), 4), np.int64), 0, 0
    for tensor in pattern:
        for block in tensor.blocks:
            part = table[row : row + block.last - block.first]
            part[:, :1] = tensor.starts(block, table)
            part[:, 1:3] = tensor.length, block.quota
            part[:, 3] = at + block.quota * np.arange(len(part))
            row, at = row + len(part), at + block.quota * len(part)
    long = table[:, 1] >= LONG
    return np.ascontiguousarray(table[~long]), np.ascontiguousarray(table[long])


def spans(pattern: Pattern) -> Iterator[tuple[Matrix, slice]]:
    """Iterate over the tensors, each with the slice of its entries among the entries of all."""
    end = 0
    for tensor in pattern:
        start, end = end, end + tensor.entries
        yield tensor, slice(start, end)
