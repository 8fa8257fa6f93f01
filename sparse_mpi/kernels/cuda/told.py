"""Whole numbers in host memory that a kernel reads or writes without a copy.

Pinned memory is mapped: a device accesses it over the bus; the host sees results after an event behind the kernel.
"""

from __future__ import annotations

import sys
from collections import deque
from contextlib import suppress
from typing import Any

import cupy
import numpy as np

UNDONE: deque[tuple[Any, np.ndarray]] = deque()  # memory without an owner, and the event behind its kernel


def pointer(told: Told | None) -> np.uintp:
    return np.uintp(0) if told is None else told.pointer


class Told:
    """Room for ``count`` int64 numbers behind those ``given``; a kernel takes ``pointer``."""

    _event: Any = None  # event behind the kernel, until it has been waited for

    def __init__(self, count: int, given: np.ndarray | None = None) -> None:
        _give_back()
        before = 0 if given is None else len(given)
        memory = np.frombuffer(cupy.cuda.alloc_pinned_memory(8 * (before + count)), np.int64, before + count)
        if given is not None:
            memory[:before] = given
        self._memory, self._numbers = memory, memory[before:]
        self.pointer = np.uintp(memory.ctypes.data)

    def written(self) -> Told:
        """Return this, once the kernel is started on the current stream."""
        self._event = cupy.cuda.get_current_stream().record(cupy.cuda.Event(disable_timing=True))
        return self

    def known(self) -> bool:
        """Tell if the kernel is done."""
        return self._event is None or bool(self._event.done)

    def numbers(self) -> np.ndarray:
        """Return the numbers ``(count,)`` int64; waits for the kernel."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        return self._numbers

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return self.numbers()

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self) -> int:
        return int(self.numbers()[0])

    def __del__(self) -> None:
        # Memory that is given back is handed out again at once, while the kernel may not have read or written it yet
        if self._event is not None and not sys.is_finalizing():
            UNDONE.append((self._event, self._memory))


def _give_back() -> None:
    for _ in range(len(UNDONE)):
        with suppress(IndexError):  # another thread has looked at it
            event, memory = UNDONE.popleft()
            if not event.done:
                UNDONE.append((event, memory))
