"""Messages between ranks over MPI, and their all-to-all, for `mpi.MPIComm`.

A row travels as one MPI datatype of its bytes, so any dtype passes and counts stay below MPI's limit of 2^31. Longer
messages are cut: one of exactly ``CHUNK`` rows announces another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparse_mpi.arrays import Array, namespace, synchronize
from sparse_mpi.comm import making
from sparse_mpi.comm.base import Counts
from sparse_mpi.comm.buffers import cut, peers, row_bytes
from sparse_mpi.comm.making import Raw, pieces, rowtype
from sparse_mpi.comm.polling import wait_until
from sparse_mpi.comm.staging import Staging

SENDRECV, ALLTOALLV = 1, 2  # tags
BUCKET = 8  # peers to which an alltoallv talks at a time, so that no rank is flooded


class PointToPoint:
    def __init__(self, raw: Raw, staging: Staging, yield_cpu: bool) -> None:
        self._rank, self._size = raw.comm.rank, raw.comm.size
        self._mpi, self._comm, self._staging = raw.mpi, raw.comm, staging
        self.yield_cpu: bool = yield_cpu

    def sendrecv(
        self, send: Array, dest: int | None, source: int | None, arrived: Callable[[], None] | None
    ) -> Array | None:
        """Exchange messages; call ``arrived()`` once the message from ``source`` is here."""
        # The send does not block: two ranks that send to each other would otherwise both wait for the other's receive.
        requests = [] if dest is None else self.start_sending(send, dest, SENDRECV)
        came = None if source is None else self.receive(send, source, SENDRECV)
        if arrived is not None:
            arrived()
        self.wait(requests)
        return came

    def alltoallv(self, send: Array, counts: Counts, expected: Counts | None) -> tuple[Array, Counts]:
        leaving = cut(send, counts)
        if expected is not None:
            return self._alltoallv_known(leaving, send, expected), expected.copy()
        arriving = self._arriving(leaving, send)
        return self.join(arriving), np.array(list(map(len, arriving)), np.int64)

    def _arriving(self, leaving: list[Array], send: Array) -> list[Array]:
        arriving = list(leaving)  # the own message stays
        for bucket in self._buckets():
            requests = []
            for dest, _ in bucket:
                requests += self.start_sending(leaving[dest], dest, ALLTOALLV)
            for _, source in bucket:  # messages announce their lengths
                arriving[source] = self.receive(send, source, ALLTOALLV)
            # The next bucket is begun when all of this one are sent: no more than that are on their way from here.
            self.wait(requests)
        return arriving

    def _alltoallv_known(self, leaving: list[Array], send: Array, expected: Counts) -> Array:
        """Receive messages at their final places, and check lengths; empty ones are not sent."""
        out = self.empty((int(expected.sum()), *send.shape[1:]), send)
        arriving = cut(out, expected)
        for bucket in self._buckets():
            messages = [
                (source, piece)
                for _, source in bucket
                if len(arriving[source])
                for piece in pieces(self._mpi, arriving[source])
            ]
            # Receives come before sends: a message that finds its receive goes straight to its final place.
            requests = [self._comm.Irecv(piece, source, ALLTOALLV) for source, piece in messages]
            for dest, _ in bucket:
                if len(leaving[dest]):
                    requests += self.start_sending(leaving[dest], dest, ALLTOALLV)
            # A message that is too long is MPI's own error (truncation); one that is too short only its status tells.
            statuses = [self._mpi.Status() for _ in requests]
            self.wait(requests, statuses)
            for (source, (_, rows, kind)), status in zip(messages, statuses, strict=False):
                if status.Get_count(kind) != rows:
                    raise ValueError(f"expected[{source}] must be what rank {source} sends, got {expected[source]}")
        arriving[self._rank][...] = leaving[self._rank]
        return out

    def _buckets(self) -> list[list[tuple[int, int]]]:
        steps = peers(self._rank, self._size)
        return [steps[at : at + BUCKET] for at in range(0, len(steps), BUCKET)]

    def start_sending(self, rows: Array, dest: int, tag: int) -> list[Any]:
        return [self._comm.Isend(piece, dest, tag) for piece in pieces(self._mpi, rows)]

    def receive(self, like: Array, source: int, tag: int) -> Array:
        first = self._receive_piece(like, source, tag)
        if len(first) < making.CHUNK:
            return first
        parts = [first]
        # MPI keeps the order of messages of one sender and one tag: the next piece is the next message.
        while len(parts[-1]) == making.CHUNK:
            parts.append(self._receive_piece(like, source, tag))
        return self.join(parts)

    def _receive_piece(self, like: Array, source: int, tag: int) -> Array:
        comm, status, kind = self._comm, self._mpi.Status(), rowtype(self._mpi, row_bytes(like))
        # A matched probe takes the message out of the queue: no other thread can receive it in between.
        if self.yield_cpu:
            message = wait_until(lambda: comm.Improbe(source, tag, status))
        else:
            message = comm.Mprobe(source, tag, status)
        rows = status.Get_count(kind)
        # MPI_UNDEFINED: the bytes are no whole number of rows.
        if rows < 0:
            raise TypeError(f"send must have rows of {row_bytes(like)} bytes on rank {source} too")
        out = self.empty((rows, *like.shape[1:]), like)
        synchronize(out)  # a device may still use this memory's former contents
        if self.yield_cpu:
            self.wait([message.Irecv([out, rows, kind])])
        else:
            message.Recv([out, rows, kind])
        return out

    def join(self, parts: list[Array]) -> Array:
        first = parts[0]
        out = self.empty((sum(map(len, parts)), *first.shape[1:]), first)
        # Pinned where the parts are, so that `Staging.upload` copies it to the device directly.
        return namespace(first).concatenate(parts, out=out)

    def wait(self, requests: list[Any], statuses: list[Any] | None = None) -> None:
        # MPI may take a core for its own waits: poll with pauses instead.
        if self.yield_cpu:
            wait_until(lambda: self._mpi.Request.Testall(requests, statuses))
        else:
            self._mpi.Request.Waitall(requests, statuses)

    def empty(self, shape: tuple[int, ...], send: Array) -> Array:
        if self._staging.used and self._staging.holds(send):
            return self._staging.empty(shape, send.dtype)
        return namespace(send).empty(shape, send.dtype)
