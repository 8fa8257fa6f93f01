"""Arrays of the host as the global memory of a device, at addresses like its own."""

from __future__ import annotations

import numpy as np

from ..fakes.fake_device import memory_of
from .machine import Counts, Machine, narrowest
from .memory import Space
from .text import Kernel

BASE = 0x7_0000_0000
PAGE, GAP = 512, 1 << 15  # bytes: to these CuPy aligns what it allocates; between two arrays at least


class Buffers:
    """Memory for the arrays of a launch, each inside its owner, of which nothing else may be touched."""

    def __init__(
        self, kernel: Kernel, arrays: list[np.ndarray], defined: list[np.ndarray | None] | None = None
    ) -> None:
        """``defined`` says of each array which of its bytes were written ``(nbytes,)``; None for all."""
        self.arrays, self.places, owners, end = arrays, [], {}, GAP
        for array in arrays:
            low, size = memory_of(array).ctypes.data, memory_of(array).nbytes
            if low not in owners:
                owners[low] = end
                end += -(-size // PAGE) * PAGE + GAP
            self.places.append(owners[low] + array.ctypes.data - low)
        cell = narrowest(kernel, "global")
        data, inside, known = np.zeros(end, np.uint8), np.zeros(end, bool), np.zeros(end, bool)
        for i, (array, place) in enumerate(zip(arrays, self.places, strict=True)):
            own = slice(place, place + array.nbytes)
            data[own], inside[own] = bytes_of(array), True
            known[own] |= True if defined is None or defined[i] is None else defined[i]
        self.space = Space(data, cell, *(of_bytes.reshape(-1, cell).all(axis=1) for of_bytes in (known, inside)))
        self.kernel = kernel

    def launch(self, arguments: list[int | np.ndarray | np.void], blocks: int, threads: int, **options) -> Counts:
        """Run the kernel; arrays among the arguments are passed as their addresses, and written back."""
        at = {id(array): BASE + place for array, place in zip(self.arrays, self.places, strict=True)}
        numbers = [at[id(one)] if isinstance(one, np.ndarray) else one for one in arguments]
        sizes = self.kernel.parameters.values()
        bits = [
            one.tobytes() if isinstance(one, np.void) else int(one).to_bytes(8, "little")[:size]
            for one, size in zip(numbers, sizes, strict=True)
        ]
        counts = Machine(self.kernel, self.space, BASE, bits, blocks, threads, **options).run()
        for array, place in zip(self.arrays, self.places, strict=True):
            bytes_of(array)[:] = self.space.data[place : place + array.nbytes]
        return counts


def bytes_of(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
