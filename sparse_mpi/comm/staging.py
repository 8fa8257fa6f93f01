"""Pinned host memory, for device arrays to and from an MPI that does not take device pointers.

Copies between pinned memory and a device run at the full speed of the bus, in stream order. Pinning is slow, so memory
is reused, and released only after much less was needed for a long time.
"""

from __future__ import annotations

from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from sparse_mpi.arrays import Array, namespace

MIN_BYTES = 1 << 16  # size of the first piece of memory
CALLS = 1000  # memory is released if the last ``CALLS`` calls needed less than one part in ``SPARE`` of it
SPARE = 8
ALIGNMENT = 64  # bytes; arrays begin at multiples of it


class Staging:
    """A communicator's pinned memory: one piece to send from, another to receive into.

    `download` begins a call and frees the last one's memory; `upload` ends it. In between, MPI receives into arrays
    from `empty`.
    """

    used = False  #: True: an array was downloaded

    def __init__(self) -> None:
        self._leaving, self._arriving = _Pinned(), _Pinned()

    def download(self, x: Any) -> np.ndarray:
        """Copy the device array ``x`` to pinned memory, and wait for the copy on the current stream."""
        xp, self.used = namespace(x), True
        self._leaving.clear()  # the last call is over
        host = self._leaving.empty(x.shape, x.dtype, xp)
        stream = xp.cuda.get_current_stream()
        if x.size:
            # Queued on the stream that computes x, and so after that.
            x.get(stream=stream, out=host, blocking=False)
        stream.synchronize()  # MPI reads host memory at once, without regard to streams
        self._arriving.clear()  # waits no more, unless the last `upload` was on another stream
        return host

    def holds(self, x: Array) -> bool:
        return self._leaving.holds(x)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an uninitialised array, pinned after a `download`; valid until the next one."""
        return self._arriving.empty(shape, dtype, self._leaving.library)

    def upload(self, host: Array, device: Array) -> Array:
        """Queue a copy of ``host`` to the library and device of ``device``, on the current stream.

        ``host`` may be reused at once, except an array of `empty`: the next `download` waits for that.
        """
        xp = namespace(device)
        if not self._arriving.holds(host):
            # It lies in ordinary memory, from which a copy would not run at full speed.
            pinned = self._arriving.empty(host.shape, host.dtype, xp)
            pinned[...] = host
            host = pinned
        out = xp.empty(host.shape, host.dtype)
        if out.size:
            stream = xp.cuda.get_current_stream()
            out.set(host, stream=stream)
            self._arriving.read_until(stream.record(xp.cuda.Event(disable_timing=True)))
        return out


class _Pinned:
    def __init__(self) -> None:
        self.library: ModuleType = np  # owner of the pinned memory
        self._memory = np.empty(0, np.uint8)
        self._used = 0
        self._read: list[Any] = []  # events behind the copies that read this memory
        self._calls, self._most, self._before = 0, 0, 0  # most bytes of these calls, and of the ``CALLS`` before

    def read_until(self, event: Any) -> None:
        self._read.append(event)

    def clear(self) -> None:
        for event in self._read:
            event.synchronize()
        self._read.clear()
        self._calls, self._most, self._used = self._calls + 1, max(self._most, self._used), 0
        if self._calls == CALLS:
            if len(self._memory) > max(MIN_BYTES, SPARE * max(self._most, self._before)):
                self._memory = np.empty(0, np.uint8)
            self._calls, self._most, self._before = 0, 0, self._most

    def empty(self, shape: tuple[int, ...], dtype: np.dtype, library: ModuleType) -> np.ndarray:
        size = prod(shape) * dtype.itemsize
        # Equal is too much as well: `holds` would miss an empty array at the very end.
        if self._used + size >= len(self._memory):
            self.clear()  # released memory is pinned for others at once
            # Twice the memory: arrays that grow from step to step are pinned anew only a few times.
            room = max(MIN_BYTES, 2 * len(self._memory), size + size // 4)
            # The array keeps the memory alive, and so do its views. A pool would keep it longer.
            memory = library.cuda.PinnedMemoryPointer(library.cuda.PinnedMemory(room), 0)
            self._memory = np.frombuffer(memory, np.uint8, room)
            self.library = library
        part = self._memory[self._used : self._used + size]
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return part.view(dtype).reshape(shape)

    def holds(self, x: Array) -> bool:
        if not len(self._memory) or not isinstance(x, np.ndarray):
            return False
        return 0 <= x.ctypes.data - self._memory.ctypes.data < len(self._memory)
