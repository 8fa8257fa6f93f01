"""Messages between two ranks over MPI: `PointToPoint` sends, receives and waits for `mpi.MPIComm`.

A row travels as one MPI datatype of its bytes, so any dtype passes and counts stay below MPI's limit of 2^31.
Beyond ``rowtypes.CHUNK`` rows a message is cut: one of exactly ``rowtypes.CHUNK`` rows announces that another follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sparse_mpi.arrays import Array, namespace, synchronize
from sparse_mpi.comm import rowtypes
from sparse_mpi.comm.buffers import row_bytes
from sparse_mpi.comm.making import Raw
from sparse_mpi.comm.polling import wait_until
from sparse_mpi.comm.staging import Staging

SENDRECV, ALLTOALLV, STARTED = 1, 2, 3  # tags


class Receiving(NamedTuple):
    """A message on its way."""

    rows: Array  # not written yet
    request: Any


class PointToPoint:
    """The messages of one communicator over MPI.

    Args:
        raw: the communicator of mpi4py.
        staging: the pinned memory of its calls.
        yield_cpu: whether to sleep between polls instead of taking a core, as MPI does.
    """

    def __init__(self, raw: Raw, staging: Staging, yield_cpu: bool) -> None:
        self._mpi, self._comm, self._rowtypes, self._staging = raw.mpi, raw.comm, raw.rowtypes, staging
        self.yield_cpu: bool = yield_cpu
        self.started: Any = None  # messages that were started last: where a rank fails MPI may still use their memory

    def sendrecv(
        self, send: Array, dest: int | None, source: int | None, arrived: Callable[[], None] | None
    ) -> Array | None:
        """Exchange messages; call ``arrived()`` once the one from ``source`` is here."""
        requests = [] if dest is None else self.start_sending(send, dest, SENDRECV)
        came = None if source is None else self.receive(send, source, SENDRECV)
        if arrived is not None:
            arrived()
        self.wait(requests)
        return came

    def start_sendrecv(self, send: Array, dest: int, source: int) -> Callable[[], Array]:
        """Start to exchange messages of one length; return what waits for the end."""
        out = self.empty(send.shape, send)
        requests = [self._comm.Irecv(piece, source, STARTED) for piece in self._rowtypes.pieces(out)]
        requests += self.start_sending(send, dest, STARTED)
        self.started = send, out, requests
        take_back = self._staging.set_aside() if self._staging.holds(send) else None

        def end() -> Array:
            self.wait(requests)
            if take_back is not None:
                take_back()
            return out

        return end

    def start_sending(self, rows: Array, dest: int, tag: int) -> list[Any]:
        """Start to send rows; return the requests."""
        return [self._comm.Isend(piece, dest, tag) for piece in self._rowtypes.pieces(rows)]

    def receive(self, like: Array, source: int, tag: int, begun: Receiving | None = None) -> Array:
        """Return the rows that ``source`` sends, whose dtype and trailing shape are those of ``like``."""
        pieces: list[Array] = []
        while not pieces or len(pieces[-1]) == rowtypes.CHUNK:
            piece, request = begun or self._start_receiving(like, source, tag)
            self.wait([request])
            pieces.append(piece)
            begun = None
        return pieces[0] if len(pieces) == 1 else self.join(pieces)

    def _start_receiving(self, like: Array, source: int, tag: int) -> Receiving:
        """Wait until ``source`` begins to send, and start to receive it."""
        if self.yield_cpu:
            return wait_until(lambda: self.begun(like, source, tag))
        status = self._mpi.Status()
        return self._matched(self._comm.Mprobe(source, tag, status), status, like, source)

    def begun(self, like: Array, source: int, tag: int) -> Receiving | None:
        """Start to receive what ``source`` sends if it has begun to."""
        status = self._mpi.Status()
        message = self._comm.Improbe(source, tag, status)
        return None if message is None else self._matched(message, status, like, source)

    def _matched(self, message: Any, status: Any, like: Array, source: int) -> Receiving:
        """Start to receive a message that has been found."""
        rowtype = self._rowtypes.of(row_bytes(like))
        rows = status.Get_count(rowtype)
        if rows < 0:
            raise TypeError(f"send must have rows of {row_bytes(like)} bytes on rank {source} too")
        out = self.empty((rows, *like.shape[1:]), like)
        synchronize(out)  # a device may still use this memory for what it held before
        return Receiving(out, message.Irecv([out, rows, rowtype]))

    def join(self, parts: list[Array]) -> Array:
        """Return all rows of ``parts`` in one array."""
        first = parts[0]
        out = self.empty((sum(map(len, parts)), *first.shape[1:]), first)
        return namespace(first).concatenate(parts, out=out)

    def wait(self, requests: list[Any], statuses: list[Any] | None = None) -> None:
        """Wait until all requests are complete."""
        if self.yield_cpu:
            wait_until(lambda: self._mpi.Request.Testall(requests, statuses))
        else:
            self._mpi.Request.Waitall(requests, statuses)

    def empty(self, shape: tuple[int, ...], send: Array) -> Array:
        """Return an array, not written yet, to receive into: in the library of ``send``, pinned if ``send`` is."""
        if self._staging.holds(send):
            return self._staging.empty(shape, send.dtype)
        return namespace(send).empty(shape, send.dtype)
