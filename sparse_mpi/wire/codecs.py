"""Codecs write the values of a packed message unchanged, or rounded to 16, 8, 4 or 2 bits.

Rounding is the same on every machine and in every run: a value sent twice arrives as the same bits. A finite value
never becomes Inf. float64 values are rounded to float32 first and decoded to float64. Any NaN arrives as the same bits,
except unrounded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, is_device, namespace, widened
from sparse_mpi.kernels.base import SCALED
from sparse_mpi.sparse import SparseVector


@runtime_checkable
class Codec(Protocol):
    """A codec of values, which is a frozen dataclass.

    It makes a code of each value and, if it has scales, a float32 scale of each block of neighbours.
    """

    @property
    def lossless(self) -> bool:
        """Return whether decoding restores the same values."""

    @property
    def block(self) -> int:
        """Return how many values share a scale; 0: no scales."""

    @property
    def together(self) -> int:
        """Return how many codes share an item; every block begins a new one."""

    @property
    def code_bytes(self) -> int | None:
        """Return the bytes of an item of codes; None: a value's."""

    def encode(self, vector: SparseVector, edges: np.ndarray) -> tuple[Array, Array]:
        """Return codes, or their items, and scales ``(b,)``; blocks lie between ``edges`` ``(b + 1,)``."""

    def decode(self, codes: Array, scales: Array, edges: np.ndarray, dtype: object) -> Array:
        """Return the values ``(nnz,)`` of type ``dtype``; arrived codes are uint8."""


@dataclass(frozen=True, repr=False)
class Unrounded:
    """Values as they are."""

    lossless: ClassVar[bool] = True
    block: ClassVar[int] = 0
    together: ClassVar[int] = 1
    code_bytes: ClassVar[int | None] = None

    def __repr__(self) -> str:
        """Return the class's first name, so that checkpoints keep loading."""
        return "Exact()"

    def encode(self, vector: SparseVector, edges: np.ndarray) -> tuple[Array, Array]:
        return namespace(vector.values).ascontiguousarray(vector.values), _no_scales(vector.values)

    def decode(self, codes: Array, scales: Array, edges: np.ndarray, dtype: Any) -> Array:
        return codes.view(dtype)


class _Rounded:
    lossless: ClassVar[bool] = False
    block: ClassVar[int] = SCALED
    together: ClassVar[int] = 1
    code_bytes: ClassVar[int | None] = 1


class _Half(_Rounded, ABC):
    block: ClassVar[int] = 0
    code_bytes: ClassVar[int | None] = 2
    kind: ClassVar[type]  # type of the codes

    def encode(self, vector: SparseVector, edges: np.ndarray) -> tuple[Array, Array]:
        values = namespace(vector.values).ascontiguousarray(vector.values)
        return values if values.itemsize == 2 else self._round(single(values)), _no_scales(values)

    def decode(self, codes: Array, scales: Array, edges: np.ndarray, dtype: Any) -> Array:
        if np.dtype(dtype).itemsize == 2:
            return codes.view(dtype)
        return as_type(codes.view(self.kind), dtype)

    @abstractmethod
    def _round(self, values: Array) -> Array: ...


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
    """float16, ties to even: 11 bits of precision from 6e-5 to 65504, to which larger values are clipped."""

    kind: ClassVar[type] = np.float16

    def _round(self, values: Array) -> Array:
        return kernels.of(values).to_float16(values)


@dataclass(frozen=True)
class Int8(_Rounded):
    """Steps of a scale that 128 neighbouring values share: a 127th of their largest finite magnitude.

    Rounding is stochastic and unbiased, to one of the two nearest steps. A hash of index and value replaces random
    numbers: every kernel set, run and transport rounds alike. Inf and NaN arrive as NaN.
    """

    short: ClassVar[bool] = False  # scales are rounded to bfloat16

    def encode(self, vector: SparseVector, edges: np.ndarray) -> tuple[Array, Array]:
        values = single(vector.values)
        return kernels.of(values).to_int8(values, vector.indices, edges, self.short)

    def decode(self, codes: Array, scales: Array, edges: np.ndarray, dtype: Any) -> Array:
        values = kernels.of(codes).from_int8(codes.view(np.int8), scales, edges)
        return values if values.dtype == dtype else as_type(values, dtype)


class _Levels(_Rounded):
    def decode(self, codes: Array, scales: Array, edges: np.ndarray, dtype: Any) -> Array:
        values = kernels.of(codes).from_levels(codes, scales, edges, 8 // self.together)
        return values if values.dtype == dtype else as_type(values, dtype)


@dataclass(frozen=True)
class Int4(_Levels):
    """A sign and one of 8 magnitudes, evenly spaced from the smallest to the largest finite one of 128 neighbours.

    Rounding is stochastic and unbiased, by the hash of `Int8`; float16 and bfloat16 values never exceed their largest.
    Levels begin at the smallest magnitude because selections have no small values: the largest 1.6 % of normal values
    are off by 3.3 %, not 8.5 %. Inf and NaN arrive as NaN; a block with one, or a 0, has levels from 0 on.
    """

    together: ClassVar[int] = 2

    def encode(self, vector: SparseVector, edges: np.ndarray) -> tuple[Array, Array]:
        values = single(vector.values)
        return kernels.of(values).to_int4(values, vector.indices, edges)


@dataclass(frozen=True)
class Int2(_Levels):
    """A sign and one of two magnitudes of 128 neighbours: the mean of those above their mean, and of the others.

    Rounding is biased, so its error must stay in the residual, as in the reducers: the largest 1.6 % of normal values
    are off by 6.8 % and all by 35 %; unbiased ones would be off by 20 and 112 %. An error never exceeds its value. Inf
    and NaN arrive as NaN; in a block with one, or a 0, the others become 0.
    """

    together: ClassVar[int] = 4

    def encode(self, vector: SparseVector, edges: np.ndarray) -> tuple[Array, Array]:
        values = single(vector.values)
        return kernels.of(values).to_int2(values, edges)


@dataclass(frozen=True)
class Log4(_Rounded):
    """A power of 4 at or below the largest of 128 neighbours, in four bits: for numbers that are not negative.

    A number is half to twice its decoded value, down to 2^-30 of the largest, to which smaller ones are raised; 2^-28
    if a neighbour is Inf, NaN, or too large for float32, which arrives as Inf. For second moments: errors are lost.
    """

    together: ClassVar[int] = 2

    def encode(self, vector: SparseVector, edges: np.ndarray) -> tuple[Array, Array]:
        with np.errstate(over="ignore"):
            values = namespace(vector.values).ascontiguousarray(vector.values, np.float32)
        return kernels.of(values).to_log4(values, edges)

    def decode(self, codes: Array, scales: Array, edges: np.ndarray, dtype: Any) -> Array:
        return kernels.of(codes).from_log4(codes, scales, edges).astype(dtype, copy=False)


def single(values: Array) -> Array:
    """Return the values as contiguous float32; finite values stay finite."""
    if values.dtype == np.float64:
        xp, largest = namespace(values), float(np.finfo(np.float32).max)
        values = xp.where(xp.isfinite(values), xp.clip(values, -largest, largest), values)
    values = values.astype(np.float32, copy=False)
    return values if values.flags.c_contiguous else namespace(values).ascontiguousarray(values)


def as_type(values: Array, dtype: Any) -> Array:
    """Return decoded values, also bfloat16 bits, as float32 or float64, with NumPy's bits of NaN.

    Conversions on a device make other bits of NaN, 0x7FFFFFFF and its float64.
    """
    values = widened(values) if values.dtype == np.uint16 else values
    if values.dtype == dtype or not is_device(values):
        return values.astype(dtype, copy=False)
    xp = namespace(values)
    return xp.where(xp.isnan(values), np.dtype(dtype).type(np.nan), values.astype(dtype))


def _no_scales(x: Array) -> Array:
    return namespace(x).empty(0, np.float32)
