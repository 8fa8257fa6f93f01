"""A device that is no device: streams, pinned memory and copies, pretended in host memory, for CPU tests.

Everything is recorded. Copies that do not block take place when their stream is synchronised, and memory that was
written since then must not be handed to others, such as MPI: `Log.early` tells who did. `Log.races` tells where streams
meet in memory in an order that nothing enforces. Events are a millisecond apart, in the order of their recording.

Computation is at once, unless a `schedule` holds: all that streams are told is then done when that draws it.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from itertools import count
from math import inf
from types import SimpleNamespace
from typing import ClassVar, NamedTuple
from weakref import finalize, ref

import numpy as np

from .schedule import NOW, Mark, Work

NOT_READY = 600  # CUDA's status of a stream that is at work
TORCH_STREAM, FIRST = 0x70C4, 1000  # the current stream of torch; the first that is made


class Copy(NamedTuple):
    to: str  # "host" or "device"
    bytes: int
    stream: int
    pinned: bool  # the host's side


class Event:
    """``cupy.cuda.Event``; ``time`` is in milliseconds."""

    ticks = count()

    def __init__(self, **_) -> None:
        self.ptr, self.clock, self.time, self.stream, self.mark = None, {}, None, None, None

    @property
    def done(self) -> bool:
        """Whether it has come; not on a stream that is stuck, and always on others."""
        if self.stream is not None:
            self.stream.go_on()
        if self.ptr in DEVICE.log.stuck or (self.mark is not None and not self.mark.came):
            return False
        for to in ("device", "host") if self.stream is not None else ():
            self.stream.flush(to, self.clock[self.ptr])
        later(DEVICE.known, self.clock)
        return True

    def synchronize(self) -> None:
        DEVICE.events.append(self)
        if self.mark is not None:
            self.stream.work.finish(self.mark)
        if DEVICE.known.get(self.ptr, 0) < self.clock.get(self.ptr, 0):  # else it has come long ago
            for to in ("device", "host"):
                self.stream.flush(to, self.clock[self.ptr])
            self.stream.log.synchronised.append(self.ptr)
        later(DEVICE.known, self.clock)


class Stream:
    """A CUDA stream: work on arrays happens at once, copies that do not block when it is synchronised.

    None waits for another one unless told to. ``clock`` says up to which epoch of each stream it comes after that; an
    event ends an epoch.
    """

    def __init__(self, log: Log, ptr: int) -> None:
        self.log, self.ptr, self.pending, self.clock = log, ptr, [], {ptr: 1}
        self.work = Work()

    def __enter__(self):
        DEVICE.join(self.log)
        DEVICE.stack.append(self)
        return self

    def __exit__(self, *_):
        assert DEVICE.stack.pop() is self

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        later(self.clock, DEVICE.known)
        event.ptr, event.clock, event.time, event.stream = self.ptr, dict(self.clock), next(Event.ticks), self
        self.clock[self.ptr] += 1
        event.mark = Mark(self)
        self.do(event.mark.come)
        return event

    def wait_event(self, event: Event) -> None:
        later(self.clock, event.clock)
        self.log.waits.append((self.ptr, event.ptr))
        if event.mark is not None and not event.mark.came:
            self.work.append(event.mark)

    def do(self, work) -> None:
        """Have ``work()`` done: at once, or when the schedule draws it."""
        if NOW:
            self.work.append(work)
            self.go_on()
        else:
            work()

    def go_on(self) -> None:
        """Let streams of this device go on, where the schedule draws that."""
        if NOW:
            NOW[0].go_on([*self.log.streams.values()])

    def queue(self, to: str, target: np.ndarray, source: np.ndarray) -> None:
        """Have a copy to the host or the device made when the stream is waited for."""
        if NOW:
            target, source = unheld(target), unheld(source)
            self.do(lambda: np.copyto(target, source))
        else:
            # What is on the device may change by then.
            self.pending.append((to, target, source.copy() if to == "host" else source, self.clock[self.ptr]))

    def flush(self, to: str, epoch: float = inf) -> None:
        """Do what waits up to an epoch, as it was queued, as far as it goes to the host or the device."""
        jobs, self.pending = self.pending, []
        for job in jobs:
            if job[0] == to and job[3] <= epoch:
                np.copyto(job[1], job[2])
            else:
                self.pending.append(job)

    def query(self) -> int:
        """CUDA's status: 0 if all is done, which is then known."""
        if self.ptr not in self.log.stuck:
            self.synchronize()
        return self.log.stuck.get(self.ptr, 0)

    def is_capturing(self) -> bool:
        return self.ptr in self.log.captured

    def synchronize(self) -> None:
        assert not self.is_capturing(), "CUDA's error 900"
        assert self.log.stuck.get(self.ptr) != NOT_READY, "waits for ever"
        if self.ptr in self.log.stuck:
            raise RuntimeError(f"CUDA's error {self.log.stuck[self.ptr]}")
        self.flush("device")
        self.flush("host")
        self.work.finish()
        for key in [key for key, (_, stream) in list(self.log.written.items()) if stream is self]:
            self.log.written.pop(key, None)
        self.log.synchronised.append(self.ptr)
        later(DEVICE.known, self.record().clock)


def later(clock: dict[int, int], other: dict[int, int]) -> None:
    """Make ``clock`` come after ``other`` too."""
    clock.update({ptr: epoch for ptr, epoch in other.items() if epoch > clock.get(ptr, 0)})


class Touched(NamedTuple):
    """Who has last written some memory, and who has read it since: the epoch of each stream."""

    owner: ref
    wrote: dict[int, int]
    read: dict[int, int]
    device: int  # that was current when it was first touched


class Log:
    """What was done to a device, by one thread and by those that enter its streams."""

    def __init__(self) -> None:
        self.copies: list[Copy] = []
        self.pinned: list[np.ndarray] = []
        self.synchronised: list[int] = []
        self.waits: list[tuple[int, int]] = []  # a stream, and the one whose event it waits for
        self.events: list[Event] = []  # that the host has waited for
        self.worked: set[int] = set()  # streams on which something was computed
        self.launched = 0  # kernels, and functions of CuPy that compute something, each as one
        self.written: dict[int, tuple[np.ndarray, Stream]] = {}  # memory written since the last synchronisation
        self.early: list[int] = []  # bytes handed out before they were there
        self.races: list[str] = []  # memory that was touched on two streams, and neither waited for the other
        self.streams: dict[int, Stream] = {}
        self.stuck: dict[int, int] = {}  # streams whose work does not end, and their status
        self.longest = 0  # bytes that CuPy's pool has handed out at once
        self.captured: set[int] = set()  # streams that are captured into a graph
        self.wrapped: list[int] = []  # streams of torch for which CuPy has made one
        self._touched: dict[int, Touched] = {}

    def stream(self, ptr: int) -> Stream:
        return self.streams.setdefault(ptr, Stream(self, ptr))

    def is_new(self, a: np.ndarray) -> bool:
        """Whether nothing has read or written the memory of ``a``, which `empty` has made."""
        return memory_of(a).ctypes.data not in self._touched

    def device_of(self, a: np.ndarray) -> int:
        """The number of the device that the memory of ``a`` is on: the current one, until something has touched it."""
        touched = self._touched.get(memory_of(a).ctypes.data)
        return DEVICE.here if touched is None else touched.device

    def touch(self, a: np.ndarray, write: bool) -> None:
        """The current stream reads or writes ``a``, whose memory must not be another one's at the same time."""
        stream, owner = DEVICE.stack[-1], memory_of(a)
        later(stream.clock, DEVICE.known)
        at = owner.ctypes.data
        if at not in self._touched:
            self._touched[at] = Touched(ref(owner, lambda _: self._touched.pop(at, None)), {}, {}, DEVICE.here)
        _, wrote, read, device = self._touched[at]
        assert device == DEVICE.here, f"memory of device {device} is used while {DEVICE.here} is current"
        for ptr, epoch in [*wrote.items(), *(read.items() if write else ())]:
            if stream.clock.get(ptr, 0) < epoch:
                self.races.append(f"{'write' if write else 'read'} on stream {stream.ptr} beside stream {ptr}")
        if write:
            wrote.clear()
            read.clear()
        (wrote if write else read)[stream.ptr] = stream.clock[stream.ptr]


class Device(threading.local):
    """What a thread does to the device; ranks of a `World` are threads, each with a device of its own.

    What the log has can be asked for here.
    """

    def __init__(self) -> None:
        self.number = 0  # of the device that this thread has chosen; of two that there are, a new thread has the first
        self.current: list[int] = []
        self.allocators = [pooled]
        self.enter(Log(), TORCH_STREAM)

    def __getattr__(self, name: str):
        return getattr(self.log, name)

    def enter(self, log: Log, torch_stream: int) -> None:
        self.log, self.stack, self.torch = log, [log.stream(0)], [torch_stream]
        self.known: dict[int, int] = {}  # epochs that this thread has waited for

    @property
    def here(self) -> int:
        return self.current[-1] if self.current else self.number

    def join(self, log: Log) -> None:
        """A thread that enters a stream of another one works on the other's device; torch's stream is the null one."""
        if self.log is not log:
            self.enter(log, 0)

    def work(self, *results: np.ndarray, launches: int = 1) -> None:
        """The current stream writes ``results``, as a copy does without a launch."""
        stream = self.stack[-1]
        stream.flush("device")
        self.worked.add(stream.ptr)
        self.log.launched += launches
        for a in results:
            if not NOW:  # else memory would be held
                self.written[id(memory_of(a))] = memory_of(a), stream
            self.touch(a, write=True)

    def read(self, a: np.ndarray) -> np.ndarray:
        """``a``, which the current stream reads."""
        self.stack[-1].flush("device")
        self.touch(a, write=False)
        return a

    def copied(self, to: str, host: np.ndarray | np.generic) -> Copy:
        pinned = any(np.may_share_memory(host, block) for block in self.pinned)
        copy = Copy(to, host.nbytes, self.stack[-1].ptr, pinned)
        self.copies.append(copy)
        return copy

    def pinned_at(self, pointer: int) -> np.ndarray | None:
        """Find the pinned memory that begins there, if there is any."""
        return next((block for block in self.pinned if block.ctypes.data == pointer), None)


class TorchStream:
    """``torch.cuda.ExternalStream``, and torch's own."""

    def __init__(self, ptr: int, device: object = None) -> None:
        self.cuda_stream = ptr

    def __enter__(self):
        DEVICE.torch.append(self.cuda_stream)
        return self

    def __exit__(self, *_):
        assert DEVICE.torch.pop() == self.cuda_stream


def memory_of(a: np.ndarray) -> np.ndarray:
    while isinstance(a.base, np.ndarray):
        a = a.base
    return a


class SelectedDevice:
    """``cupy.cuda.Device``."""

    compute_capability = "90"
    attributes: ClassVar = {"MaxSharedMemoryPerBlockOptin": 227 << 10, "MultiProcessorCount": 2}

    def __init__(self, number: int | None = None) -> None:
        self.id = DEVICE.here if number is None else number

    def __enter__(self):
        DEVICE.current.append(self.id)
        return self

    def __exit__(self, *_):
        DEVICE.current.pop()

    def use(self) -> None:
        DEVICE.number = self.id

    def synchronize(self) -> None:
        for stream in list(DEVICE.streams.values()):
            stream.synchronize()


def unheld(a: np.ndarray) -> np.ndarray:
    """The array ``a`` for work that is done later, see `Schedule.unheld`."""
    return NOW[0].unheld(a) if NOW else a


def pin(size: int) -> np.ndarray:
    made = NOW[0].empty((size,), np.dtype(np.uint8), DEVICE.log) if NOW else np.empty(size, np.uint8)
    DEVICE.pinned.append(unheld(made))
    return made


def new_stream(*, non_blocking: bool) -> Stream:
    """``cupy.cuda.Stream``; others would wait for the null stream."""
    assert non_blocking
    return DEVICE.stream(FIRST + len(DEVICE.streams))


class Memory:
    """``cupy.cuda.MemoryPointer`` of an allocator in Python, or of CuPy's pool, which frees nothing."""

    def __init__(self, pointer: int, free=None) -> None:
        self.pointer, self.free = pointer, free


class FunctionAllocator:
    """``cupy.cuda.PythonFunctionAllocator``."""

    def __init__(self, take, give_back) -> None:
        self._take, self._give_back = take, give_back

    def malloc(self, size: int) -> Memory:
        device = DEVICE.here
        pointer = self._take(size, device)
        return Memory(pointer, lambda: self._give_back(pointer, device))


def pooled(size: int) -> Memory:
    """``malloc`` of CuPy's pool, which keeps what it has."""
    DEVICE.log.longest = max(DEVICE.log.longest, size)
    return Memory(0)


@contextmanager
def using_allocator(allocator):
    DEVICE.allocators.append(allocator)
    try:
        yield
    finally:
        DEVICE.allocators.pop()


def allocate(a: np.ndarray) -> np.ndarray:
    """Note that ``a`` is new memory of the device, of the allocator that is in use; it is given back as ``a`` dies."""
    if a.base is None and not NOW:
        memory = DEVICE.allocators[-1](a.nbytes)
        if memory.free is not None:
            finalize(a, memory.free)
    return a


class TorchMemory:
    """The memory of torch's caching allocator, of all threads: what it has handed out, by address."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.most = 0
        self._next = count(1)

    def alloc(self, size: int, device: int, stream: int) -> int:
        assert stream == DEVICE.stack[-1].ptr, "memory of another stream than the current one"
        self.live[pointer := next(self._next)] = size
        self.most = max(self.most, sum(self.live.values()))
        return pointer

    def delete(self, pointer: int) -> None:
        del self.live[pointer]


TORCH_MEMORY = TorchMemory()


class ForeignStream:
    """A stream over one of torch's; whichever thread enters it does so on the device that it works on."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    @classmethod
    def from_external(cls, stream) -> ForeignStream:
        version, ptr = stream.__cuda_stream__()
        assert version == 0
        DEVICE.wrapped.append(ptr)
        return cls(ptr)

    def __enter__(self):
        return DEVICE.stream(self.ptr).__enter__()

    def __exit__(self, *error):
        DEVICE.stack[-1].__exit__(*error)


new_stream.from_external = ForeignStream.from_external
CUDA = SimpleNamespace(  # ``cupy.cuda``, of CuPy 14
    Device=SelectedDevice,
    Event=Event,
    Stream=new_stream,
    get_current_stream=lambda: DEVICE.stack[-1],
    get_elapsed_time=lambda first, later: float(later.time - first.time),
    alloc_pinned_memory=pin,
    PythonFunctionAllocator=FunctionAllocator,
    get_allocator=lambda: DEVICE.allocators[-1],
    using_allocator=using_allocator,
    PinnedMemory=pin,  # of no pool
    PinnedMemoryPointer=lambda memory, offset: memory[offset:],
    runtime=SimpleNamespace(
        deviceGetPCIBusId=lambda number: f"0000:0{number}:00.0",
        getDevice=lambda: DEVICE.here,
        getDeviceCount=lambda: 1,
        streamQuery=lambda ptr: DEVICE.stream(ptr).query(),
    ),
)
DEVICE = Device()
