"""The watchdog over NCCL's communicator: `NcclWatchdog`.

If an exchange fails or takes longer than SPARSE_MPI_TIMEOUT, it says so and aborts the communicator, which ends all
waiting kernels. Results are then undefined.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Any

from sparse_mpi.comm.job.watchdog import TIMEOUT, WATCHDOG_THREAD, Watchdog


class NcclWatchdog(Watchdog):
    """The state of NCCL's communicator, once made, and its exchanges; other threads may `poll` it."""

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        super().__init__(rank, size, timeout)
        self.made: Any = None  # the communicator
        self._closing = threading.RLock()  # held while a thread asks NCCL, and while the communicator is given up
        self._failure: Exception | None = None
        self._entered = 0.0  # start of the exchange that the host is queueing; 0: it queues none
        self._stream: Any = None  # stream of the last exchange
        # The event behind that, when it was recorded, and the event that was seen done
        self._event: Any = None
        self._recorded, self._done = 0.0, None

    def watch(self, made: Any) -> None:
        self.made = made
        WATCHDOG_THREAD.add(self)

    @contextmanager
    def queueing(self) -> Iterator[tuple[Any, int]]:
        """Yield NCCL's communicator and the current stream's address, to queue one exchange."""
        from cupy.cuda import Event, get_current_stream

        self._stream, self._entered = get_current_stream(), perf_counter()
        try:
            yield self.made, self._stream.ptr
            self._event, self._recorded = self._stream.record(Event(disable_timing=True)), perf_counter()
        finally:
            self._entered = 0.0
            self.require_running()  # the error above may come from an abort

    def require_running(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"NCCL must not have failed before a call, it has: {self._failure}") from self._failure

    def poll(self) -> None:
        with self._closing:
            if self.closed or self._failure is not None:
                return
            try:
                self.made.check_async_error()
                if self.timeout and self._late():
                    raise RuntimeError(
                        f"a call over NCCL must end within {TIMEOUT}={self.timeout:g} seconds, it did not"
                    )
            except Exception as error:
                self._failure = error
                self.say(f"gives up NCCL: {error}")
                # This ends the kernels that wait for peers, and so the host's wait.
                self.made.abort()

    def _late(self) -> bool:
        now, entered, event = perf_counter(), self._entered, self._event
        if entered and now - entered > self.timeout:
            return True
        # CUDA is asked once, when the time is over: a question from here would spoil a graph that is being captured
        if event is None or event is self._done or now - self._recorded <= self.timeout:
            return False
        with suppress(Exception):  # a capture is under way: asked again
            if not event.done:
                return True
            self._done = event
        return False

    def close(self) -> None:
        if self._stream is not None and not self.closed:
            with suppress(Exception):  # failures on the device are raised where results are used
                self._stream.synchronize()
        with self._closing:
            if self.made is not None and not self.closed:
                self.made.destroy()
            self.closed = True
