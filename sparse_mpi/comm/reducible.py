"""Types that ranks can reduce, on the host and on devices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparse_mpi.arrays import Array

REDUCIBLE = frozenset(np.dtype(code) for code in "bhilqBHILQfd")  # integers of all widths, float32, float64
# Substitutes for the types that gloo and NCCL do not reduce: sums agree modulo 2^bits, 16-bit maxima because every
# value fits
SUBSTITUTES = {"int16": "int32", "uint16": "int32", "uint32": "int32", "uint64": "int64"}


def reduced(send: Array, op: str, reduce: Callable[[Array], object]) -> Array:
    """Return the reduction of ``send``, of a reducible type, by ``reduce(x)``, in place.

    ``x`` has a substitute for each type in `SUBSTITUTES`. An empty ``send`` is not reduced.
    """
    if not send.size:
        return send.copy()
    substitute = np.dtype(SUBSTITUTES.get(send.dtype.name, send.dtype))
    if substitute.itemsize > send.itemsize:
        wide = send.astype(substitute)
        reduce(wide)
        return wide.astype(send.dtype)
    total = send.copy()
    if substitute == send.dtype or op == "sum":
        reduce(total.view(substitute))
        return total
    top = send.dtype.type(1 << (8 * send.itemsize - 1))  # top bit: with it flipped, signed order is unsigned order
    total ^= top
    reduce(total.view(substitute))
    total ^= top
    return total
