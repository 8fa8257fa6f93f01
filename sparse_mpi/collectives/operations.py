"""Operations that combine the values of equal keys."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np

from sparse_mpi.checks import meant

NAMED = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
# MPI's operations: of bool values the logical ones are the bitwise ones
OF_MPI = [("sum", "SUM"), ("prod", "PROD"), ("min", "MIN"), ("max", "MAX")]
OF_MPI += [(name, f"{kind}{name.upper()}") for name in ("and", "or", "xor") for kind in "BL"]
WRAPPING = (np.add, np.multiply)  # operations by which integers may leave the range of their type
TRIED = (0, 1, 2, 3, 5)  # small numbers, of which all triples are tried; sums and products of them are exact


def named(op: object) -> Any:
    """Return the name in `NAMED` of an MPI operation, as ``MPI.SUM``; anything else unchanged."""
    MPI = sys.modules.get("mpi4py.MPI")  # mpi4py may not be imported, and without it there are no MPI operations
    if MPI is None or not isinstance(op, MPI.Op):
        return op
    return next((name for name, attribute in OF_MPI if op == getattr(MPI, attribute)), op)


def operation(op: Any, dtype: np.dtype | None) -> np.ufunc:
    """Return the ufunc of ``op``, tried on ``dtype`` unless None: not known yet."""
    found = NAMED.get(op, op) if isinstance(op, str) else op
    if isinstance(found, str):
        raise ValueError(f"op must be one of {', '.join(NAMED)}, or a ufunc of NumPy, got {op!r}{meant(op, NAMED)}")
    if not hasattr(found, "reduceat") or (found.nin, found.nout) != (2, 1):  # Numba's are of a class of their own
        raise TypeError(
            f"op must be one of {', '.join(NAMED)}, or a NumPy ufunc of two arguments, got {op!r}; "
            "numba.vectorize with signatures makes one of a function"
        )
    if dtype is not None:
        _try(found, op, dtype)
    return found


@cache  # caches arguments that passed
def _try(ufunc: np.ufunc, op: object, dtype: np.dtype) -> None:
    numbers = np.array(TRIED).astype(dtype)
    a, b, c = (grid.ravel() for grid in np.meshgrid(numbers, numbers, numbers))
    with np.errstate(all="ignore"):
        try:
            ab, ba = ufunc(a, b), ufunc(b, a)
        except TypeError:
            raise TypeError(f"op must combine values of {dtype}, got {op!r}, which has no loop for them") from None
        if ab.dtype != dtype:
            raise TypeError(f"op must give {dtype} for values of {dtype}, got {op!r}, which gives {ab.dtype}")
        if not _same(ab, ba):
            raise ValueError(f"op must be commutative, for ranks are combined in any order, got {op!r}")
        if not _same(ufunc(ab, c), ufunc(a, ufunc(b, c))):
            raise ValueError(f"op must be associative, for ranks are combined in groups, got {op!r}")


def may_wrap(values: np.ndarray, op: object, count: int) -> bool:
    """Tell if ``op``, a ufunc or its name, may overflow the integer type of ``values`` by combining ``count``."""
    if values.dtype.kind not in "iu" or not values.size:
        return False
    most = max(-int(values.min()), int(values.max()))
    return (most**count if NAMED.get(str(op), op) is np.multiply else most * count) > np.iinfo(values.dtype).max


def check_exact(found: np.ndarray, floats: np.ndarray, op: np.ufunc) -> None:
    """Raise ValueError if combined integers have wrapped around: float64, combined alike, is off by much less."""
    wrong = np.abs(floats - found) > 2.0 ** (8 * found.itemsize - 1)  # NaN is zero times infinity, which is zero
    if wrong.any():
        ends, got = np.iinfo(found.dtype), f"{floats[wrong][0]:.17g}; convert values first, to int64 or float64"
        what = f"in [{ends.min}, {ends.max}] for values of {found.dtype}"
        raise ValueError(f"results of op={op.__name__!r} must be {what}, got {got}")


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype.kind in "fc":
        tolerance = 1e2 * float(np.finfo(a.dtype).eps)
        return np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
    return bool((a == b).all())
