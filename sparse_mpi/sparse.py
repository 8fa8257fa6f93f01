"""SparseVector and Layout: the algebra that every algorithm is written in. Pure functions, NumPy or CuPy arrays."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi import arrays, kernels
from sparse_mpi.arrays import Array, namespace, to_host


class SparseVector(NamedTuple):
    """The non-zero entries of a dense vector of length ``size``, in index order."""

    indices: Array  # (nnz,) int32, strictly increasing; int64 when size > 2**31 - 1
    values: Array  # (nnz,) dtype of the dense vector
    size: int  # n, length of the dense vector

    @property
    def nnz(self) -> int:
        """Number of entries."""
        return len(self.indices)

    def to_dense(self) -> Array:
        """The dense vector ``(size,)``, zero where there is no entry; in the library of ``values``."""
        if hasattr(self.values, "new_zeros"):  # a torch tensor, handed out to the caller
            return self.values.new_zeros(self.size).index_copy_(0, self.indices.long(), self.values)
        dense = namespace(self.values).zeros(self.size, self.values.dtype)
        dense[self.indices] = self.values
        return dense


def leave(result: SparseVector | Array, caller: Any) -> Any:
    """``result`` in the library, and on the device, of the caller's array; see `sparse_mpi.arrays.leave`."""
    if isinstance(result, SparseVector):
        return SparseVector(arrays.leave(result.indices, caller), arrays.leave(result.values, caller), result.size)
    return arrays.leave(result, caller)


def merge(vector: SparseVector) -> SparseVector:
    """Sum entries that share an index; ``vector`` holds the runs of several ranks one after the other.

    Entries of one index are added in the order in which they stand, so whoever merges the same buffer gets the same
    bits: rank order in, agreement out. ``vector.indices`` need not be sorted here; the result's are.
    """
    return SparseVector(*kernels.of(vector.values).merge(*vector), vector.size)


def truncate(vector: SparseVector, k: int, reuse: bool = False) -> SparseVector:
    """The k >= 1 entries of largest magnitude (all, if there are no more); of equal ones those of lower index.

    ``reuse``: ``vector`` is not needed any more and its memory may hold the result.
    """
    return SparseVector(*kernels.of(vector.values).truncate(vector.indices, vector.values, k, reuse), vector.size)


def concatenate(parts: Sequence[SparseVector]) -> SparseVector:
    """The entries of ``parts`` one after the other: a sorted vector if the parts lie in ascending index ranges."""
    xp = namespace(parts[0].values)
    return SparseVector(
        xp.concatenate([p.indices for p in parts]), xp.concatenate([p.values for p in parts]), parts[0].size
    )


def take(vector: SparseVector, chosen: Array) -> SparseVector:
    """The entries that a boolean mask ``(nnz,)``, ascending positions or a slice choose."""
    return SparseVector(vector.indices[chosen], vector.values[chosen], vector.size)


def subtract(a: SparseVector, b: SparseVector) -> SparseVector:
    """``a - b``, over the union of their indices."""
    return merge(concatenate([a, SparseVector(b.indices, -b.values, b.size)]))


def contains(vector: SparseVector, indices: Array) -> Array:
    """For each of the sorted ``indices`` whether ``vector`` has an entry there: a boolean mask."""
    return kernels.of(indices).contains(vector.indices, indices)


def split_counts(vector: SparseVector, boundaries: Array) -> np.ndarray:
    """Number of entries in each region: ``boundaries`` ``(P + 1,)`` ascending, region q is ``[b[q], b[q+1])``.

    Because indices ascend, region q's entries are one slice; the counts ``(P,)`` int64 cut the vector into them.
    """
    xp = namespace(vector.indices)
    cuts = xp.searchsorted(vector.indices, xp.asarray(boundaries, vector.indices.dtype))
    return np.diff(to_host(cuts)).astype(np.int64)


def equal_boundaries(size: int, ranks: int) -> np.ndarray:
    """Boundaries ``(ranks + 1,)`` int64 of regions of equal width: ``q * size // ranks``, never empty at the end."""
    return np.arange(ranks + 1, dtype=np.int64) * size // ranks


@dataclass(frozen=True)
class NoState:
    """The state of a selector or algorithm that remembers nothing from step to step."""


@dataclass(frozen=True)
class Layout:
    """Shapes of the tensors that make up the flat vector, in order."""

    shapes: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(layout: Any) -> Layout:
        """A Layout from a length, a sequence of shapes, or a Layout.

        Raises:
            TypeError: ``layout`` is none of these.
            ValueError: it describes a vector without elements.
        """
        if isinstance(layout, Layout):
            return layout
        try:
            shapes = [(layout,)] if isinstance(layout, (int, np.integer)) else layout
            made = Layout(tuple(tuple(operator.index(d) for d in shape) for shape in shapes))
        except TypeError:
            raise TypeError(
                f"layout must be a length, a sequence of tensor shapes or a Layout, got {layout!r}; "
                "for a model pass [p.shape for p in model.parameters()]"
            ) from None
        if made.size < 1 or min(made.sizes) < 0:
            raise ValueError(f"layout must describe at least one element, got {layout!r}; pass the gradient's length")
        return made

    @property
    def digest(self) -> str:
        """8 hexadecimal digits that tell layouts apart."""
        return blake2b(repr(self.shapes).encode(), digest_size=4).hexdigest()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of elements of each tensor."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each tensor starts in the flat vector."""
        return tuple(itertools.accumulate(self.sizes, initial=0))[:-1]

    @property
    def size(self) -> int:
        """n, the length of the flat vector."""
        return sum(self.sizes)
