"""A device that is no device: streams, pinned memory and copies, pretended in host memory, for CPU tests.

Everything is recorded. Copies that do not block take place when their stream is synchronised, and memory that was
written since then must not be handed to others, such as MPI: `Device.early` tells who did.
"""

from __future__ import annotations

import threading
from typing import ClassVar, NamedTuple

import numpy as np


class Copy(NamedTuple):
    """One copy between host and device."""

    to: str  # "host" or "device"
    bytes: int
    stream: int
    pinned: bool  # the host's side


class Stream:
    """A CUDA stream: work on arrays happens at once, copies that do not block when it is synchronised."""

    def __init__(self, device: Device, ptr: int) -> None:
        self.device, self.ptr, self.pending = device, ptr, []

    def __enter__(self):
        self.device.stack.append(self)
        return self

    def __exit__(self, *_):
        assert self.device.stack.pop() is self

    def flush(self, to: str) -> None:
        """Do what waits in the order in which it was queued, as far as it goes to the host or the device."""
        for job in [job for job in self.pending if job[0] == to]:
            self.pending.remove(job)
            np.copyto(job[1], job[2])

    def synchronize(self) -> None:
        self.flush("device")
        self.flush("host")
        self.device.written.clear()
        self.device.synchronised.append(self.ptr)


class Device(threading.local):
    """What a thread did to the device; ranks of a `World` are threads."""

    def __init__(self) -> None:
        self.copies: list[Copy] = []
        self.pinned: list[np.ndarray] = []
        self.synchronised: list[int] = []
        self.worked: set[int] = set()  # streams on which something was computed
        self.written: dict[int, np.ndarray] = {}  # memory written since the last synchronisation
        self.early: list[int] = []  # bytes handed out before they were there
        self.streams: dict[int, Stream] = {}
        self.stack = [self.stream(0)]
        self.current: list[int] = []

    def stream(self, ptr: int) -> Stream:
        return self.streams.setdefault(ptr, Stream(self, ptr))

    def work(self, *results: np.ndarray) -> None:
        """The current stream computes ``results``."""
        stream = self.stack[-1]
        stream.flush("device")
        self.worked.add(stream.ptr)
        self.written.update((id(memory_of(a)), memory_of(a)) for a in results)

    def copied(self, to: str, host: np.ndarray | np.generic) -> Copy:
        """Record a copy on the current stream."""
        pinned = any(np.may_share_memory(host, block) for block in self.pinned)
        copy = Copy(to, host.nbytes, self.stack[-1].ptr, pinned)
        self.copies.append(copy)
        return copy

    def moved(self) -> int:
        """Bytes copied so far."""
        return sum(copy.bytes for copy in self.copies)


def memory_of(a: np.ndarray) -> np.ndarray:
    """The array that owns the memory of ``a``."""
    while isinstance(a.base, np.ndarray):
        a = a.base
    return a


class SelectedDevice:
    """``cupy.cuda.Device``."""

    attributes: ClassVar = {"MaxSharedMemoryPerBlockOptin": 227 << 10, "MultiProcessorCount": 2}

    def __init__(self, number: int = 0) -> None:
        self.id = number

    def __enter__(self):
        DEVICE.current.append(self.id)
        return self

    def __exit__(self, *_):
        DEVICE.current.pop()

    def synchronize(self) -> None:
        for stream in list(DEVICE.streams.values()):
            stream.synchronize()


DEVICE = Device()
