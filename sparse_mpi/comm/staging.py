"""Pinned host memory, through which device arrays pass to and from an MPI that does not take device pointers.

A copy between pinned memory and a device runs at the full speed of the bus and in the order of its stream; one from
ordinary memory goes through a pinned buffer of the driver first. Pinning is slow, so the memory is kept and reused.
"""

from __future__ import annotations

from math import prod
from types import ModuleType

import numpy as np

from sparse_mpi.arrays import Array, namespace

LEAST = 1 << 16  # bytes of the first piece of memory
ALIGNMENT = 64  # arrays begin at multiples of so many bytes


class Staging:
    """The kept memory of one communicator: what leaves in one piece, what arrives in another.

    `download` begins a call and gives the memory of the last one free again; `upload` ends it. In between, `empty` is
    where MPI receives.
    """

    def __init__(self) -> None:
        self._leaving, self._arriving = _Pinned(), _Pinned()

    def download(self, x: Array) -> np.ndarray:
        """The device array ``x`` in pinned memory, once the current stream has written and copied it."""
        xp = namespace(x)
        self._leaving.clear()
        self._arriving.clear()
        host = self._leaving.empty(x.shape, x.dtype, xp)
        stream = xp.cuda.get_current_stream()
        if x.size:
            x.get(stream=stream, out=host, blocking=False)
        stream.synchronize()
        return host

    def holds(self, x: Array) -> bool:
        """Whether ``x`` is in the memory that `download` fills."""
        return self._leaving.holds(x)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array, not written yet, that can be uploaded as it stands; after a `download`, valid up to the next."""
        return self._arriving.empty(shape, dtype, self._leaving.library)

    def upload(self, host: np.ndarray, device: Array) -> Array:
        """A copy of ``host`` in the library, and on the device, of ``device``; ``host`` is no longer needed then."""
        xp = namespace(device)
        if not self._arriving.holds(host):
            pinned = self._arriving.empty(host.shape, host.dtype, xp)
            pinned[...] = host
            host = pinned
        out = xp.empty(host.shape, host.dtype)
        stream = xp.cuda.get_current_stream()
        if out.size:
            out.set(host, stream=stream)
        stream.synchronize()
        return out


class _Pinned:
    """Pinned memory that is handed out from its beginning to its end. It grows by being replaced with a larger piece;
    arrays in the old one keep that alive."""

    def __init__(self) -> None:
        self.library: ModuleType = np  # which pinned the memory
        self._memory = np.empty(0, np.uint8)
        self._used = 0

    def clear(self) -> None:
        """Take back everything that was handed out."""
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype, library: ModuleType) -> np.ndarray:
        """An array, not written yet, in memory that ``library``, that is CuPy, pins."""
        size = prod(shape) * dtype.itemsize
        if self._used + size >= len(self._memory):
            self._memory = _pin(max(LEAST, 2 * len(self._memory), size + size // 4), library)
            self.library, self._used = library, 0
        part = self._memory[self._used : self._used + size]
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return part.view(dtype).reshape(shape)

    def holds(self, x: Array) -> bool:
        """Whether the host array ``x`` lies in this memory."""
        if not len(self._memory) or not isinstance(x, np.ndarray):
            return False
        return 0 <= x.ctypes.data - self._memory.ctypes.data < len(self._memory)


def _pin(size: int, library: ModuleType) -> np.ndarray:
    return np.frombuffer(library.cuda.alloc_pinned_memory(size), np.uint8, size)
