"""How much processor time a rank computes between its calls of a communicator."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import TypeVar

from sparse_mpi.comm import Comm
from sparse_mpi.comm.forwarding import ForwardingComm

T = TypeVar("T")


class _Meter:
    """Processor time outside calls: ``computing`` seconds up to the last one, which ended at ``since``."""

    def __init__(self) -> None:
        self.computing, self.since = 0.0, process_time()

    def outside(self, call: Callable[[], T]) -> T:
        """Return what ``call`` returns; its time does not count."""
        self.computing += process_time() - self.since
        try:
            return call()
        finally:
            self.since = process_time()


class ProcessorTime(ForwardingComm):
    """A `Comm` that counts the processor time of this process outside its calls.

    Ranks that share cores wait for one; their processor time does not. It is what they would need on cores of their
    own, if memory were as fast for all at once. With several threads it is the sum over them.
    """

    def __init__(self, comm: Comm, meter: _Meter | None = None) -> None:
        super().__init__(comm)
        self._meter = meter or _Meter()

    def _around(self, call: Callable[[], T]) -> T:
        return self._meter.outside(call)

    def split(self, color: int) -> ProcessorTime:
        """As of any `Comm`; what is computed between calls of the part counts here."""
        return ProcessorTime(super().split(color), self._meter)

    def elapsed(self) -> float:
        """Seconds of processor time outside calls so far."""
        return self._meter.computing + process_time() - self._meter.since
