"""Messages between two ranks over MPI: the part of `mpi.MPIComm` that sends, receives and waits.

A row travels as one MPI datatype of its bytes, so any dtype passes and counts stay below MPI's limit of 2^31.
Beyond ``rowtypes.CHUNK`` rows a message is cut: one of exactly ``rowtypes.CHUNK`` rows announces that another follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sparse_mpi.arrays import Array, namespace, synchronize
from sparse_mpi.comm import rowtypes
from sparse_mpi.comm.buffers import row_bytes
from sparse_mpi.comm.counting import CountingComm
from sparse_mpi.comm.patience import until
from sparse_mpi.comm.rowtypes import RowTypes
from sparse_mpi.comm.staging import Staging

SENDRECV, ALLTOALLV, STARTED = 1, 2, 3  # tags


class Receiving(NamedTuple):
    """A message on its way."""

    rows: Array  # not written yet
    request: Any


class PointToPoint(CountingComm):
    """A communicator over MPI that can send messages."""

    _mpi: Any  # the module of mpi4py
    _comm: Any  # its communicator
    _rowtypes: RowTypes
    _staging: Staging
    _patient: bool
    _started: Any = None  # messages that were started last

    def _sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        requests = [] if dest is None else self._start_sending(send, dest, SENDRECV)
        came = None if source is None else self._receive(send, source, SENDRECV)
        if self.watched is not None:
            self.watched.received()
        self._wait(requests)
        return came

    def _start_sendrecv(self, send: Array, dest: int, source: int) -> Callable[[], Array]:
        out = self._empty(send.shape, send)
        requests = [self._comm.Irecv(piece, source, STARTED) for piece in self._rowtypes.pieces(out)]
        requests += self._start_sending(send, dest, STARTED)
        # Where a rank fails before the end, MPI may still use this memory
        self._started = send, out, requests
        take_back = self._staging.set_aside() if self._staging.holds(send) else None

        def end() -> Array:
            self._wait(requests)
            if take_back is not None:
                take_back()
            return out

        return end

    def _start_sending(self, rows: Array, dest: int, tag: int) -> list[Any]:
        return [self._comm.Isend(piece, dest, tag) for piece in self._rowtypes.pieces(rows)]

    def _receive(self, like: Array, source: int, tag: int, begun: Receiving | None = None) -> Array:
        """Return the rows that ``source`` sends, whose dtype and trailing shape are those of ``like``."""
        pieces: list[Array] = []
        while not pieces or len(pieces[-1]) == rowtypes.CHUNK:
            piece, request = begun or self._start_receiving(like, source, tag)
            self._wait([request])
            pieces.append(piece)
            begun = None
        return pieces[0] if len(pieces) == 1 else self._join(pieces)

    def _start_receiving(self, like: Array, source: int, tag: int) -> Receiving:
        """Wait until ``source`` begins to send, and start to receive it."""
        if self._patient:
            return until(lambda: self._begun(like, source, tag))
        status = self._mpi.Status()
        return self._matched(self._comm.Mprobe(source, tag, status), status, like, source)

    def _begun(self, like: Array, source: int, tag: int) -> Receiving | None:
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
        out = self._empty((rows, *like.shape[1:]), like)
        synchronize(out)  # a device may still use this memory for what it held before
        return Receiving(out, message.Irecv([out, rows, rowtype]))

    def _join(self, parts: list[Array]) -> Array:
        """Return all rows of ``parts`` in one array."""
        first = parts[0]
        out = self._empty((sum(map(len, parts)), *first.shape[1:]), first)
        return namespace(first).concatenate(parts, out=out)

    def _wait(self, requests: list[Any], statuses: list[Any] | None = None) -> None:
        if self._patient:
            until(lambda: self._mpi.Request.Testall(requests, statuses))
        else:
            self._mpi.Request.Waitall(requests, statuses)

    def _empty(self, shape: tuple[int, ...], send: Array) -> Array:
        """Return an array, not written yet, to receive into: in the library of ``send``, pinned if ``send`` is."""
        if self._staging.holds(send):
            return self._staging.empty(shape, send.dtype)
        return namespace(send).empty(shape, send.dtype)
