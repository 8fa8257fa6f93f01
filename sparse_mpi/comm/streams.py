"""Device work of another thread: on its own stream, ordered with the caller's where their data meet.

CuPy and torch reuse freed memory on the stream of its allocation, and do not wait for other streams. So a result made
beside the caller's stream is copied to it, and its memory stays untouched until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from sparse_mpi import arrays
from sparse_mpi.sparse import SparseVector

STREAMS: list[Any] = []  # streams made beside callers': torch keeps memory by their handles, so none may end


class Marks(NamedTuple):
    """Events on a device when data of work was ready, and when its stream began and ended it."""

    given: Any
    began: Any
    ended: Any


class Side:
    """A stream beside the callers', for one thread's work on one device; others touch only lent memory."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._lent: deque[tuple[Any, Any]] = deque()  # events, and the results that callers copy until then
        self._borrowed: dict[Any, Any] = {}  # event -> memory that is not read after it

    def lend(self, result: Any, copied: Any) -> None:
        self._lent.append((copied, result))

    def borrow(self, x: Any, ended: Any) -> None:
        """Hold ``x``, memory of another stream, until that stream has waited for the event ``ended``."""
        # Drop memory that has been read by now, though no caller has waited for it. A caller may drop some at the same
        # time, in `follow`: so go through a copy.
        for event in [event for event in list(self._borrowed) if event.done]:
            self.give_back(event)
        self._borrowed[ended] = x

    def give_back(self, ended: Any) -> None:
        self._borrowed.pop(ended, None)

    def come_after(self, event: Any) -> None:
        """Have later work on the stream wait for ``event`` and copies of all lent results."""
        self.stream.wait_event(event)
        while self._lent:
            copied, result = self._lent.popleft()
            self.stream.wait_event(copied)
            del result  # its memory is used again on this stream only


class Branch:
    """Work that begins after all queued on the caller's stream so far, and runs beside it."""

    def __init__(self, x: Any, sides: dict[int, Side]) -> None:
        import cupy

        self._x, self._cupy = x, cupy
        self._begun = mark(x)  # event on the caller's stream, which has written x by then
        with arrays.on_stream_of(x):
            self._device = cupy.cuda.Device()
            if self._device.id not in sides:
                # A stream that is not non-blocking would wait for the default one, on which callers may compute.
                sides[self._device.id] = Side(cupy.cuda.Stream(non_blocking=True))
                STREAMS.append(sides[self._device.id].stream)
        self._side = sides[self._device.id]
        self._entered: Any = None  # event on the branch's stream as the work begins
        self._ended: Any = None  # event there after the work; None as long as it goes on
        self._own: Any = None  # the caller's copy of the result, and the event of its end
        self._copied: Any = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have CuPy and torch of the working thread use the branch's stream within the block."""
        side = self._side.stream
        # Current device and stream belong to a thread, and CuPy and torch each have their own.
        with ExitStack() as stack:
            stack.enter_context(self._device)
            stack.enter_context(side)
            if not arrays.is_device(self._x):
                import torch

                stack.enter_context(torch.cuda.stream(torch.cuda.ExternalStream(side.ptr, self._x.device)))
            # Begin: the stream waits for x, and for the copies that callers make of earlier results.
            self._side.come_after(self._begun)
            self._entered = side.record()
            try:
                yield
            finally:
                # End: queued work may still read x, also where an error was raised.
                self._ended = side.record()
                self._side.borrow(self._x, self._ended)

    @property
    def marks(self) -> Marks:
        return Marks(self._begun, self._entered, self._ended)

    def follow(self) -> None:
        """Have the caller's stream wait for the branch, once its work is done or has failed."""
        if self._ended is not None:
            with arrays.on_stream_of(self._x):
                self._cupy.cuda.get_current_stream().wait_event(self._ended)
            # Memory of x that is freed from now on is used again by the caller's stream only, which waits by now.
            self._side.give_back(self._ended)

    def own(self, result: Any) -> Any:
        """Return a copy of ``result``, array, tensor or `SparseVector`, in memory of the first caller's stream."""
        with arrays.on_stream_of(self._x):
            here = self._cupy.cuda.get_current_stream()
            # The first who asks copies, on its own stream, after `follow` has had that wait for the work.
            if self._copied is None:
                self._own = _copy(result)
                self._copied = here.record()
                self._side.lend(result, self._copied)
            here.wait_event(self._copied)  # later callers are on other streams
        return self._own


def mark(x: Any) -> Any:
    """Return an event behind all work queued on the stream of ``x``; None for ``x`` on the host."""
    if not arrays.is_on_device(x):
        return None
    import cupy

    with arrays.on_stream_of(x):
        return cupy.cuda.get_current_stream().record()


def seconds_between(first: Any, later: Any) -> float:
    import cupy

    return cupy.cuda.get_elapsed_time(first, later) / 1e3


def _copy(result: Any) -> Any:
    if isinstance(result, SparseVector):
        return result._replace(indices=_copy(result.indices), values=_copy(result.values))
    if callable(result):  # it has arrays of this stream, and goes on there
        return result
    return result.copy() if arrays.is_device(result) else result.clone()
