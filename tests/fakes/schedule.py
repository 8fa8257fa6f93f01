"""Streams of the `fake_device` that go on when a seed says so, and memory that others get as soon as nobody holds it.

As on a device, what a stream is told happens later: in the order of that stream, after the events that it waits for, at
the latest when the host waits for it, and some time before if the seed draws so. Then memory is read and written as it
is by that time. What was dropped meanwhile belongs to the next who asks: pinned memory to anybody, that of the device
to work on the stream on which it was made.
"""

from __future__ import annotations

import gc
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from weakref import finalize

import numpy as np

BLOCK = 512  # bytes; memory is handed out in multiples of them
HASTE = (0.0, 0.3, 0.9)  # how readily a stream goes on by itself; which of these is drawn, too


class Mark:
    """What an event stands for each time that it is recorded: a place in the work of a stream."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.came = stream, False

    def come(self) -> None:
        self.came = True


class Holder:
    """Whoever has an array of this memory, of which NumPy makes one, holds it."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory, self.__array_interface__ = memory, memory.__array_interface__


class Schedule:
    def __init__(self, seed: int) -> None:
        self.draws = Random(seed)
        self._haste: defaultdict[Any, float] = defaultdict(lambda: self.draws.choice(HASTE))  # by stream
        self.blocks: dict[int, np.ndarray] = {}  # all memory that there is, by its address
        self._free: defaultdict[tuple[Any, int], list[np.ndarray]] = defaultdict(list)  # by owner and bytes

    def go_on(self, streams: Iterable[Any]) -> None:
        """Do some of the work that ``streams`` have, maybe."""
        for stream in streams:
            while stream.work.can_go_on() and self.draws.random() < self._haste[stream]:
                stream.work.go_on()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype, owner: Any) -> np.ndarray:
        """An array that has what ``owner``, a stream or a device, has last written there, or NaN."""
        size = int(np.prod(shape)) * dtype.itemsize
        whole = max(1, -(-size // BLOCK)) * BLOCK
        free = self._free[owner, whole]
        if not free:
            made = np.full(whole, 0xFF, np.uint8)
            self.blocks[made.ctypes.data] = made
            free.append(made)
        memory = free.pop()
        holder = Holder(memory)
        finalize(holder, free.append, memory)
        return np.asarray(holder)[:size].view(dtype).reshape(shape)

    def unheld(self, a: np.ndarray) -> np.ndarray:
        """The array ``a`` as work sees it that has been queued: nobody holds its memory for that."""
        whole = a
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        block = self.blocks.get(whole.ctypes.data)
        return a if block is None else np.ndarray(a.shape, a.dtype, block, a.ctypes.data - block.ctypes.data, a.strides)


class Work:
    """What one stream has still to do, in its order: pieces of work, and marks of others that it waits for."""

    def __init__(self) -> None:
        self._queue: deque[Mark | Callable[[], object]] = deque()

    def append(self, item: Mark | Callable[[], object]) -> None:
        self._queue.append(item)

    def can_go_on(self) -> bool:
        return bool(self._queue) and (not isinstance(self._queue[0], Mark) or self._queue[0].came)

    def go_on(self) -> None:
        """Do what is first; if that waits for another stream, this one has come there before."""
        first = self._queue[0]
        if isinstance(first, Mark):
            first.stream.work.finish(first)
            self._queue.popleft()
        else:
            self._queue.popleft()
            with np.errstate(all="ignore"):
                first()

    def finish(self, mark: Mark | None = None) -> None:
        """Do what there is, up to a mark."""
        while self._queue and not (mark and mark.came):
            self.go_on()


NOW: list[Schedule] = []  # the schedule that holds, if any


@contextmanager
def scheduled(seed: int) -> Iterator[None]:
    """Have streams of all ranks, threads that take turns, work by a schedule."""
    NOW.append(Schedule(seed))
    gc.disable()  # when memory is dropped is to be the same each time
    try:
        yield
    finally:
        gc.enable()
        NOW.clear()
