"""How values are written in messages: as they are, or rounded by a codec of `sparse_mpi.wire`."""

from __future__ import annotations

import numpy as np

from sparse_mpi.wire import WIRES, BitPacked
from sparse_mpi.wire.codecs import Codec, Unrounded

PACKED = {name: wire for name, wire in WIRES.items() if isinstance(wire, BitPacked)}
ROUNDED = (np.dtype(np.float32), np.dtype(np.float64))


def codec_of(wire: str | BitPacked | None, op: np.ufunc, dtype: np.dtype) -> Codec:
    """Return the codec that writes values of type ``dtype``, which are combined by ``op``.

    Args:
        wire: a name in `PACKED`, an instance, or None for values as they are.
        op: what combines the values that arrive.
        dtype: of the values.

    Raises:
        TypeError: neither a name nor an instance, or values of this type are not rounded.
        ValueError: an unknown name, or the codec has steps that neighbours share, and values are multiplied.
    """
    names = ", ".join(PACKED)
    if isinstance(wire, str) and wire not in PACKED:
        raise ValueError(f"wire must be None or one of {names}, got {wire!r}; keys are always packed")
    made = PACKED[wire] if isinstance(wire, str) else wire
    if made is None:
        return Unrounded()
    if not isinstance(made, BitPacked):
        raise TypeError(f"wire must be None, one of {names}, or a BitPacked, got {wire!r}")
    if not made.lossless and dtype not in ROUNDED:
        raise TypeError(f"wire must be None or 'packed' for values of {dtype}, got {wire!r}; float32 and float64 only")
    if made.codec.block and op is np.multiply:
        raise ValueError(
            f"wire must be one whose errors are relative for op='prod', got {wire!r}, which may round a small factor "
            "to zero; take 'packed+bf16'"
        )
    return made.codec
