"""SparseVector <-> one contiguous buffer, ready to be sent. The only file that knows the message format.

A message is a C-contiguous matrix with one row a pair: the index's bytes, then the value's. Rows are what the transport
counts and cuts, so a vector encoded once can be split among all ranks by row counts, and a buffer of several ranks'
messages decodes in one go, into arrays of its own. A float32 pair is 8 bytes, a float64 pair 12, a half-precision pair
6. There is no header.

Where every rank knows how many entries each row of each tensor has (`rows.Pattern`), a message is flat bytes instead:
all values, row by row, then their columns in the row, in as many bytes as the row's length needs.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from sparse_mpi.arrays import Array, namespace
from sparse_mpi.kernels.base import index_dtype
from sparse_mpi.rows import Pattern, row_starts, spans
from sparse_mpi.sparse import SparseVector


def _unit(dtype: Any) -> np.dtype:
    """The integer type rows are made of: the widest that divides an index and a value."""
    return np.dtype(np.int32 if np.dtype(dtype).itemsize % 4 == 0 else np.int16)


def pair_bytes(size: int, dtype: Any) -> int:
    """Bytes of one (index, value) pair of a vector of length ``size``."""
    return index_dtype(size).itemsize + np.dtype(dtype).itemsize


def encode(vector: SparseVector) -> Array:
    """The message: ``(nnz, w)`` int32 (int16 for half-precision values), C-contiguous, in the vector's library."""
    unit = _unit(vector.values.dtype)
    split = index_dtype(vector.size).itemsize // unit.itemsize
    width = pair_bytes(vector.size, vector.values.dtype) // unit.itemsize
    rows = namespace(vector.values).empty((vector.nnz, width), unit)
    rows[:, :split] = vector.indices.view(unit).reshape(vector.nnz, split)
    rows[:, split:] = vector.values.view(unit).reshape(vector.nnz, width - split)
    return rows


def decode(rows: Array, size: int, dtype: Any) -> SparseVector:
    """The inverse of `encode`, for one message or several in one buffer; ``size`` and ``dtype`` are the vector's."""
    xp = namespace(rows)
    split = index_dtype(size).itemsize // _unit(dtype).itemsize
    indices = xp.array(rows[:, :split], order="C").view(index_dtype(size)).reshape(-1)
    values = xp.array(rows[:, split:], order="C").view(np.dtype(dtype)).reshape(-1)
    return SparseVector(indices, values, size)


def column_type(length: int) -> np.dtype:
    """The type of a column in a row of that length: one byte up to 256, two up to 65,536, else `index_dtype`."""
    return np.dtype(np.uint8 if length <= 1 << 8 else np.uint16 if length <= 1 << 16 else index_dtype(length))


def column_bytes(pattern: Pattern) -> int:
    """Bytes of all columns in a message of that pattern."""
    return sum(tensor.entries * column_type(tensor.length).itemsize for tensor in pattern)


def encode_rows(vector: SparseVector, pattern: Pattern) -> Array:
    """The message ``(bytes,)`` uint8 of a vector whose entries are what ``pattern`` says, in index order."""
    xp = namespace(vector.values)
    indices, values = vector.indices, vector.values
    if any(tensor.stride > 1 for tensor in pattern):
        order = _row_order(indices, pattern)
        indices, values = indices[order], values[order]
    columns = indices - row_starts(pattern, indices)
    for tensor, part in spans(pattern):
        if tensor.stride > 1:
            columns[part] //= tensor.stride
    parts = [values, *(xp.concatenate([columns[part] for part in of]).astype(kind) for kind, of in _sections(pattern))]
    return xp.concatenate([xp.ascontiguousarray(part).view(np.uint8) for part in parts])


def _row_order(indices: Array, pattern: Pattern) -> Array:
    """What brings a tensor's entries from index order into the order of its rows."""
    xp = namespace(indices)
    order = xp.arange(len(indices))
    for tensor, part in spans(pattern):
        if tensor.stride > 1:
            order[part] = part.start + xp.argsort(tensor.numbers(indices[part]), kind="stable")
    return order


def decode_rows(messages: Array, pattern: Pattern, size: int, dtype: Any) -> SparseVector:
    """The inverse of `encode_rows` for the messages of all ranks ``(P, bytes)``: their entries one after the other.

    ``size`` and ``dtype`` are the vector's. The entries of a rank are in index order where rows are contiguous.
    """
    xp = namespace(messages)
    entries = sum(tensor.entries for tensor in pattern)
    at = entries * np.dtype(dtype).itemsize
    values = xp.array(messages[:, :at], order="C").view(np.dtype(dtype))
    indices = xp.empty((len(messages), entries), index_dtype(size))
    for kind, parts in _sections(pattern):
        for part in parts:
            width = (part.stop - part.start) * kind.itemsize
            indices[:, part] = xp.array(messages[:, at : at + width], order="C").view(kind)
            at += width
    for tensor, part in spans(pattern):
        if tensor.stride > 1:
            indices[:, part] *= tensor.stride
    indices += row_starts(pattern, indices)
    return SparseVector(indices.reshape(-1), values.reshape(-1), size)


def _sections(pattern: Pattern) -> list[tuple[np.dtype, list[slice]]]:
    """Types of columns, and where among the entries those are that have it: neighbouring tensors in one go."""
    found: dict[np.dtype, list[slice]] = {}
    for kind, tensors in groupby(spans(pattern), lambda span: column_type(span[0].length)):
        parts = [part for _, part in tensors]
        found.setdefault(kind, []).append(slice(parts[0].start, parts[-1].stop))
    return list(found.items())
