"""Packed messages on a device, with a thread for every entry."""

from __future__ import annotations

import cupy
import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.kernels.base import SCALED, index_dtype
from sparse_mpi.kernels.cuda.program import blocks_for, kernel, start


def write_messages(messages: np.ndarray, indices: Array, codes: Array, scales: Array) -> Array:
    """See `base.Kernels.write_messages`."""
    length = int(messages["end"][-1])
    words = cupy.zeros(-(-length // 4), np.uint32)
    if indices.size:
        write = _kernel("write_entries", indices.dtype)
        arguments = (cupy.ascontiguousarray(indices), codes.view(np.uint8), scales.view(np.uint32))
        start(write, blocks_for(indices.size), _table(messages), len(messages), *arguments, indices.size, words)
    return words.view(np.uint8)[:length]


def read_messages(messages: np.ndarray, buffer: Array, size: int) -> tuple[Array, Array, Array]:
    """See `base.Kernels.read_messages`."""
    entries, table, buffer = int(messages["entries"].sum()), _table(messages), cupy.ascontiguousarray(buffer)
    bytes_of_codes = int((messages["scales"] - messages["values"]).sum())
    indices, codes = cupy.empty(entries, index_dtype(size)), cupy.empty(bytes_of_codes, np.uint8)
    scales = cupy.empty(int((messages["lows"] - messages["scales"]).sum()) // 4, np.float32)
    # High bits, in chunks of 64: a prefix sum of their counts tells each chunk which entries are in it.
    chunks = -(-messages["span"] // 64)
    count = int(chunks.sum())
    if count:
        firsts, bits = cupy.asarray(np.cumsum(chunks) - chunks), cupy.empty(count, np.int64)
        of_chunks = (table, len(messages), firsts, count, buffer)
        start(_kernel("count_bits", indices.dtype), blocks_for(count), *of_chunks, bits)
        start(_kernel("read_highs", indices.dtype), blocks_for(count), *of_chunks, cupy.cumsum(bits), indices)
    # Everything else, entry by entry; low bits are added to the high ones.
    if entries:
        written = (indices, codes, scales.view(np.uint32))
        read = _kernel("read_entries", indices.dtype)
        start(read, blocks_for(entries), table, len(messages), buffer, entries, *written)
    return indices, codes, scales


def _kernel(name: str, index: np.dtype) -> object:
    """Return a kernel of bits.cu for indices of that type."""
    return kernel(name, "bits.cu", REAL="float32", INDEX=index.name, SCALED=SCALED)


def _table(messages: np.ndarray) -> Array:
    """Copy the messages to the device, as plain integers."""
    return cupy.asarray(messages.view(np.int64))
