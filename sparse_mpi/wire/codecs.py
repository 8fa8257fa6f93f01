"""How values are written in a packed message: as they are, or rounded to two bytes or one.

What rounds is the same on every machine and in every run: a value that is sent twice arrives as the same bits. A finite
value never becomes Inf. float64 values are rounded to float32 first, and come back as float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, namespace, widened
from sparse_mpi.kernels.base import SCALED
from sparse_mpi.sparse import SparseVector


class Codec(Protocol):
    """A frozen dataclass. Codes are an array of one item a value, scales of one float32 a block of values."""

    @property
    def lossless(self) -> bool:
        """Whether values come back as they were."""

    @property
    def block(self) -> int:
        """Values that share a scale, 0 where there are no scales."""

    def code_type(self, dtype: Any) -> np.dtype:
        """Of the codes of values of that dtype."""

    def encode(self, vector: SparseVector, edges: np.ndarray) -> tuple[Array, Array]:
        """Codes ``(nnz,)`` and scales ``(b,)`` of the values; blocks lie between ``edges`` ``(b + 1,)``."""

    def decode(self, codes: Array, scales: Array, edges: np.ndarray, dtype: Any) -> Array:
        """The values ``(nnz,)`` of that dtype."""


@dataclass(frozen=True)
class Exact:
    """Values as they are."""

    lossless: ClassVar[bool] = True
    block: ClassVar[int] = 0

    def code_type(self, dtype: Any) -> np.dtype:
        """See `Codec.code_type`."""
        return np.dtype(dtype)

    def encode(self, vector: SparseVector, edges: np.ndarray) -> tuple[Array, Array]:
        """See `Codec.encode`."""
        return namespace(vector.values).ascontiguousarray(vector.values), _no_scales(vector.values)

    def decode(self, codes: Array, scales: Array, edges: np.ndarray, dtype: Any) -> Array:
        """See `Codec.decode`."""
        return codes


class _Half(ABC):
    """Two bytes a value. Values of half precision already are sent as they are."""

    lossless: ClassVar[bool] = False
    block: ClassVar[int] = 0
    kind: ClassVar[type]  # of the codes

    def code_type(self, dtype: Any) -> np.dtype:
        """See `Codec.code_type`."""
        return np.dtype(dtype if np.dtype(dtype).itemsize == 2 else self.kind)

    def encode(self, vector: SparseVector, edges: np.ndarray) -> tuple[Array, Array]:
        """See `Codec.encode`."""
        values = namespace(vector.values).ascontiguousarray(vector.values)
        return values if values.itemsize == 2 else self._round(_single(values)), _no_scales(values)

    def decode(self, codes: Array, scales: Array, edges: np.ndarray, dtype: Any) -> Array:
        """See `Codec.decode`."""
        return codes if codes.dtype == dtype else widened(codes).astype(dtype, copy=False)

    @abstractmethod
    def _round(self, values: Array) -> Array:
        """Codes ``(m,)`` of float32 values."""


@dataclass(frozen=True)
class BFloat16(_Half):
    """bfloat16, ties to even: the range of float32 and 8 bits of precision."""

    kind: ClassVar[type] = np.uint16

    def _round(self, values: Array) -> Array:
        codes = kernels.of(values).to_bfloat16(values)
        overflown = ((codes & 0x7FFF) == 0x7F80) & namespace(values).isfinite(values)
        return codes - overflown.astype(np.uint16)  # one less than Inf is the largest number


@dataclass(frozen=True)
class Float16(_Half):
    """float16, ties to even: 11 bits of precision from 6e-5 to 65504, which stands for all that is larger."""

    kind: ClassVar[type] = np.float16

    def _round(self, values: Array) -> Array:
        return kernels.of(values).to_float16(values)


@dataclass(frozen=True)
class Int8:
    """Steps of a scale that 128 neighbouring values share: a 127th of the largest finite magnitude among them.

    Which of the two nearest steps it is, is drawn with probabilities that make the mean right. It is drawn by a hash of
    index and value, so that no state is kept and every kernel set, run and transport draws the same; a value that comes
    again at the same index is rounded the same way, and unbiased is the rounding over all values and indices. Inf and
    NaN arrive as NaN.
    """

    lossless: ClassVar[bool] = False
    block: ClassVar[int] = SCALED

    def code_type(self, dtype: Any) -> np.dtype:
        """See `Codec.code_type`."""
        return np.dtype(np.int8)

    def encode(self, vector: SparseVector, edges: np.ndarray) -> tuple[Array, Array]:
        """See `Codec.encode`."""
        values = _single(vector.values)
        return kernels.of(values).to_int8(values, vector.indices, edges)

    def decode(self, codes: Array, scales: Array, edges: np.ndarray, dtype: Any) -> Array:
        """See `Codec.decode`."""
        return kernels.of(codes).from_int8(codes, scales, edges).astype(dtype, copy=False)


def _single(values: Array) -> Array:
    """In float32, contiguous; what is finite stays so."""
    xp = namespace(values)
    if values.dtype == np.float64:
        most = float(np.finfo(np.float32).max)
        values = xp.where(xp.isfinite(values), xp.clip(values, -most, most), values)
    return xp.ascontiguousarray(values.astype(np.float32, copy=False))


def _no_scales(x: Array) -> Array:
    return namespace(x).empty(0, np.float32)
