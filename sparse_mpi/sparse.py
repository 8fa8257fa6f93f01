"""SparseVector, Layout, and the pure operations behind all algorithms, on NumPy and CuPy arrays."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import numpy as np

from sparse_mpi import arrays, kernels
from sparse_mpi.arrays import A, Array, Flattens, namespace
from sparse_mpi.kernels.base import Number

if TYPE_CHECKING:

    class SparseVector(NamedTuple, Generic[A]):
        """The generic form of the class below: Python 3.10 has no generic named tuples."""

        indices: A
        values: A
        size: int

        @property
        def nnz(self) -> int: ...
        def to_dense(self) -> A: ...

else:

    class SparseVector(NamedTuple):
        """The selected entries of a dense vector of length ``size``, in index order; all others count as zero."""

        indices: Array  #: (nnz,) int32, strictly increasing; int64 when size > 2**31 - 1
        values: Array  #: (nnz,) dtype of the dense vector
        size: int  #: n, length of the dense vector

        @property
        def nnz(self) -> int:
            """Return the number of entries."""
            return len(self.indices)

        def to_dense(self) -> Array:
            """Return the dense vector ``(size,)``, zero where there is no entry, in the library of ``values``."""
            indices: object = self.indices
            values: object = self.values
            if hasattr(values, "new_zeros"):  # a torch tensor, handed out to the caller
                return values.new_zeros(self.size).index_copy_(0, indices.long(), values)
            dense = namespace(values).zeros(self.size, values.dtype)
            dense[indices] = values
            return dense


def leave(result: SparseVector | Array, caller: Flattens[A]) -> SparseVector[A] | A:
    if isinstance(result, SparseVector):
        return SparseVector(arrays.leave(result.indices, caller), arrays.leave(result.values, caller), result.size)
    return arrays.leave(result, caller)


def merge(vector: SparseVector, lengths: np.ndarray | None = None) -> SparseVector:
    """Sum the entries that share an index, in their order; indices of the result ascend.

    So ranks that merge the same buffer get the same bits. With ascending runs of ``lengths`` ``(runs,)`` a device need
    not sort.
    """
    return SparseVector(*kernels.of(vector.values).merge(*vector, lengths=lengths), vector.size)


def truncate(vector: SparseVector, k: int, reuse: bool = False) -> SparseVector:
    """Return the k >= 1 entries of largest magnitude, or all if there are no more.

    Of equal magnitudes the lower index is taken. With ``reuse`` the result may overwrite ``vector``.
    """
    return SparseVector(*kernels.of(vector.values).truncate(vector.indices, vector.values, k, reuse), vector.size)


def truncate_least(vector: SparseVector, k: int, reuse: bool = False) -> tuple[SparseVector, Number]:
    """Return the result of `truncate`, and the least magnitude bits of its k values; 0 for fewer."""
    indices, values, least = kernels.of(vector.values).truncate_least(vector.indices, vector.values, k, reuse)
    return SparseVector(indices, values, vector.size), least


def at_least(
    x: Array, threshold: int, most: int, add: Array | None = None, squares: Array | None = None
) -> SparseVector | None:
    """Return the entries of ``x`` with magnitude bits from ``threshold`` on, or None for more than ``most``.

    On the host, ``add`` ``(n,)``, if given, is added to ``x`` in place, in the same pass, and with ``squares`` ``(n,)``
    entries are those in ``x / sqrt(squares)``, see `Kernels.standardized`; on a device `largest` does both.
    """
    if squares is not None:
        found = kernels.host().select_standardized(x, squares, threshold, most, add)
    elif add is None:
        found = kernels.of(x).select(x, threshold, most)
    else:
        found = kernels.host().accumulate_select(x, add, threshold, most)
    return None if found is None else SparseVector(*found, len(x))


def all_at_least(x: Array, threshold: int) -> SparseVector:
    found = at_least(x, threshold, most=len(x))
    if found is None:
        raise RuntimeError(f"a kernel found more than {len(x)} entries in {len(x)}")
    return found


def concatenate(parts: Sequence[SparseVector]) -> SparseVector:
    join, (indices, values, sizes) = namespace(parts[0].values).concatenate, zip(*parts, strict=True)
    return SparseVector(join(indices), join(values), sizes[0])


def take(vector: SparseVector, chosen: Array | slice, count: int | None = None) -> SparseVector:
    """Return the entries that a boolean mask ``(nnz,)``, ascending positions or a slice choose.

    With the ``count`` of a mask, the host need not wait for a device.
    """
    if not isinstance(chosen, slice) and chosen.dtype == bool:
        return SparseVector(*kernels.of(chosen).compress(vector.indices, vector.values, chosen, count), vector.size)
    return SparseVector(vector.indices[chosen], vector.values[chosen], vector.size)


def reaching(vector: SparseVector, threshold: int, count: int, chosen: Array | None = None) -> SparseVector:
    """Return the ``count`` entries, within a mask ``(nnz,)`` if any, with magnitude bits from ``threshold`` on."""
    kept = kernels.of(vector.values).compress(vector.indices, vector.values, chosen, count, threshold)
    return SparseVector(*kept, vector.size)


def where(vector: SparseVector, other: SparseVector) -> SparseVector:
    """Return ``vector`` with 0 for its values where ``other`` has no entry, without waiting for a device."""
    return vector._replace(values=kernels.of(vector.values).among(other.indices, vector.indices, vector.values))


def subtract(a: SparseVector, b: SparseVector) -> SparseVector:
    """Return ``a - b`` over the union of their ascending indices."""
    runs = [(a.indices, a.values), (b.indices, -b.values)]
    return SparseVector(*kernels.of(a.values).merge_runs(runs, a.size), a.size)


def contains(vector: SparseVector, indices: Array) -> Array:
    """Return a boolean mask of the ascending ``indices``: True where ``vector`` has an entry."""
    return kernels.of(indices).contains(vector.indices, indices)


def split_counts(vector: SparseVector, boundaries: np.ndarray) -> Any:
    """Count the entries of each region between ascending ``boundaries`` ``(P + 1,)``; see `Kernels.split_counts`."""
    if len(vector.indices) == vector.size:  # it has every index
        return boundaries[1:] - boundaries[:-1]
    return kernels.of(vector.indices).split_counts(vector.indices, boundaries)


def equal_boundaries(size: int, ranks: int) -> np.ndarray:
    """Return boundaries ``(ranks + 1,)`` int64, ``q * size // ranks``, of equal regions; the last is never empty."""
    return np.arange(ranks + 1, dtype=np.int64) * size // ranks


def regions_of(boundaries: np.ndarray) -> np.ndarray:
    """Return start and stop ``(m, 2)`` of each region between ``boundaries`` ``(m + 1,)``."""
    return boundaries.repeat(2)[1:-1].reshape(-1, 2)


@dataclass(frozen=True)
class NoState:
    """The state of a selector or algorithm without one."""


@dataclass(frozen=True)
class Layout:
    """The shapes of the flat vector's tensors, in order."""

    shapes: tuple[tuple[int, ...], ...]

    def __getstate__(self) -> dict[str, Any]:
        return {"shapes": self.shapes}

    @staticmethod
    def of(layout: Any) -> Layout:
        """Return the Layout that a length, a sequence of shapes or a Layout describes.

        Raises:
            TypeError: ``layout`` is of another type.
            ValueError: ``layout`` describes a vector without elements, or has a negative dimension.
        """
        shapes = layout.shapes if isinstance(layout, Layout) else layout
        try:
            shapes = [(shapes,)] if isinstance(shapes, (int, np.integer)) else shapes
            made = Layout(tuple(tuple(map(_dimension, shape)) for shape in shapes))
        except (TypeError, ArithmeticError):
            raise TypeError(
                f"layout must be a length, a sequence of tensor shapes or a Layout, got {layout!r}; "
                "for a model pass [p.shape for p in model.parameters()]"
            ) from None
        if any(d < 0 for shape in made.shapes for d in shape) or not 1 <= made.size < 2**63:
            raise ValueError(
                "layout must have no negative dimension, at least one element and fewer than 2^63, got "
                f"{layout!r}; pass the gradient's length, or the shapes of the tensors it is made of"
            )
        return layout if isinstance(layout, Layout) else made

    @property
    def digest(self) -> str:
        """Return 8 hexadecimal digits that tell layouts apart."""
        return blake2b(repr(self.shapes).encode(), digest_size=4).hexdigest()

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of elements of each tensor."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Return each tensor's first index in the flat vector."""
        return tuple(itertools.accumulate(self.sizes, initial=0))[:-1]

    @property
    def parts(self) -> tuple[slice, ...]:
        """Return where each tensor is in the flat vector."""
        return tuple(slice(start, start + size) for start, size in zip(self.offsets, self.sizes, strict=True))

    @cached_property
    def size(self) -> int:
        """Return n, the length of the flat vector."""
        return sum(self.sizes)


def _dimension(d: Any) -> int:
    if isinstance(d, bool):
        raise TypeError(f"a dimension must be a whole number, got {d}")
    return operator.index(d)
