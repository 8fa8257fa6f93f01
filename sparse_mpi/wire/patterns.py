"""Messages of vectors with numbers of entries in each tensor's rows known to all ranks, as a `rows.Pattern`.

A message is flat bytes: all values, row by row, then their columns, in 1, 2 or 4 bytes by the row's length. The pattern
gives row numbers and counts.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from sparse_mpi.arrays import Array, index_dtype, is_device, namespace
from sparse_mpi.kernels.base import MalformedMessage
from sparse_mpi.rows import Pattern, row_starts, spans
from sparse_mpi.sparse import SparseVector


def column_type(length: int) -> np.dtype:
    """Return the type of a column in a row of ``length``: one byte up to 256, two up to 65,536, else `index_dtype`."""
    return np.dtype(np.uint8 if length <= 1 << 8 else np.uint16 if length <= 1 << 16 else index_dtype(length))


def column_bytes(pattern: Pattern) -> int:
    return sum(tensor.entries * column_type(tensor.length).itemsize for tensor in pattern)


def encode_rows(vector: SparseVector, pattern: Pattern) -> Array:
    """Return the message ``(bytes,)`` uint8 of a vector with ``pattern``'s entries, in index order."""
    xp = namespace(vector.values)
    indices, values = vector.indices, vector.values
    # Bring entries into the order of their rows, if rows are strided.
    if any(tensor.stride > 1 for tensor in pattern):
        order = _row_order(indices, pattern)
        indices, values = indices[order], values[order]
    # Turn indices into columns, counted from the start of the row.
    columns = indices - row_starts(pattern, indices)
    for tensor, part in spans(pattern):
        if tensor.stride > 1:
            columns[part] //= tensor.stride
    # Write the values, and then the columns, all of one width in one section.
    parts = [values, *(xp.concatenate([columns[part] for part in of]).astype(kind) for kind, of in _sections(pattern))]
    return xp.concatenate([xp.ascontiguousarray(part).view(np.uint8) for part in parts])


def _row_order(indices: Array, pattern: Pattern) -> Array:
    xp = namespace(indices)
    order = xp.arange(len(indices))
    for tensor, part in spans(pattern):
        if tensor.stride > 1:
            order[part] = part.start + xp.argsort(tensor.numbers(indices[part]), kind="stable")
    return order


def decode_rows(messages: Array, pattern: Pattern, size: int, dtype: Any) -> SparseVector:
    """Invert `encode_rows` for messages ``(P, bytes)``: entries in rank order, then by index or by strided row."""
    xp = namespace(messages)
    entries = sum(tensor.entries for tensor in pattern)
    at = entries * np.dtype(dtype).itemsize
    values = xp.array(messages[:, :at], order="C").view(np.dtype(dtype))
    # Read the columns, section by section.
    indices = xp.empty((len(messages), entries), index_dtype(size))
    for kind, parts in _sections(pattern):
        for part in parts:
            width = (part.stop - part.start) * kind.itemsize
            indices[:, part] = xp.array(messages[:, at : at + width], order="C").view(kind)
            at += width
    # Turn columns into indices, if they are of their rows.
    for tensor, part in () if is_device(indices) else spans(pattern):
        outside = ((indices[:, part] < 0) | (indices[:, part] >= tensor.length)).any(axis=1)
        if outside.any():
            problem = f"it has a column that is not in [0, {tensor.length})"
            raise MalformedMessage(int(outside.argmax()), len(messages), problem)
    for tensor, part in spans(pattern):
        if tensor.stride > 1:
            indices[:, part] *= tensor.stride
    indices += row_starts(pattern, indices)
    return SparseVector(indices.reshape(-1), values.reshape(-1), size)


def _sections(pattern: Pattern) -> list[tuple[np.dtype, list[slice]]]:
    found: dict[np.dtype, list[slice]] = {}
    for kind, tensors in groupby(spans(pattern), lambda span: column_type(span[0].length)):
        parts = [part for _, part in tensors]
        found.setdefault(kind, []).append(slice(parts[0].start, parts[-1].stop))
    return list(found.items())
