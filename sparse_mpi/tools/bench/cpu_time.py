"""How much processor time a rank computes between its calls of a communicator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any

CALLS = frozenset({"sendrecv", "allgather", "allgatherv", "alltoallv", "allreduce", "bcast", "barrier", "node"})


class _Meter:
    """Processor time outside calls: ``computing`` seconds up to the last one, which ended at ``since``."""

    def __init__(self) -> None:
        self.computing, self.since = 0.0, process_time()

    def outside(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what ``call`` returns; its time does not count."""
        self.computing += process_time() - self.since
        try:
            return call(*args, **kwargs)
        finally:
            self.since = process_time()


class ProcessorTime:
    """A `Comm` that counts the processor time of this process outside its calls.

    Ranks that share cores wait for one; their processor time does not. It is what they would need on cores of their
    own, if memory were as fast for all at once. With several threads it is the sum over them.
    """

    def __init__(self, comm: Any, meter: _Meter | None = None) -> None:
        self._comm = comm
        self._meter = meter or _Meter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._comm, name)
        return partial(self._meter.outside, found) if name in CALLS else found

    def split(self, color: int) -> ProcessorTime:
        """As of any `Comm`; what is computed between calls of the part counts here."""
        return ProcessorTime(self._meter.outside(self._comm.split, color), self._meter)

    def elapsed(self) -> float:
        """Seconds of processor time outside calls so far."""
        return self._meter.computing + process_time() - self._meter.since
