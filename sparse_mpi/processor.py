"""How much processor time a rank computes between its calls of a communicator."""

from __future__ import annotations

from time import process_time
from typing import Any

CALLS = frozenset({"sendrecv", "allgather", "allgatherv", "alltoallv", "allreduce", "bcast", "barrier"})


class ProcessorTime:
    """A `Comm` that counts the processor time of this process outside its calls.

    Ranks that share cores wait for one; their processor time does not. It is what they would need on cores of their
    own, if memory were as fast for all at once. With several threads it is the sum over them.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.computing = 0.0  # seconds, up to the end of the last call
        self._since = process_time()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._comm, name)
        return self._counted(found) if name in CALLS else found

    def _counted(self, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.computing += process_time() - self._since
            try:
                return method(*args, **kwargs)
            finally:
                self._since = process_time()

        return call

    def elapsed(self) -> float:
        """Seconds of processor time outside calls so far."""
        return self.computing + process_time() - self._since
