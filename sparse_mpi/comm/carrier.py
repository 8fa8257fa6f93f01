"""Parts of a transport: a `Carrier` of arrays on the host and, if need be, a `Device` for arrays on devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm.base import Counts
from sparse_mpi.comm.buffers import announced_rows, empty_rows, header
from sparse_mpi.comm.reducible import reduced


class Device(Protocol):
    """Moves contiguous arrays on a device, of known lengths, into arrays that receivers have made.

    Calls are queued on the current stream, and the host does not wait. All but `exchange` are collective.
    """

    def meet(self, x: Array) -> None:
        """Prepare for calls on the device of ``x``. Called before each other call, by all ranks before the first."""

    def allgather(self, send: Array, out: Array) -> None:
        """Fill ``out`` ``(P, *send.shape)``, which is not empty."""

    def allgatherv(self, send: Array, out: Array, counts: Counts) -> None:
        """Fill ``out`` with the rows of all ranks in rank order, ``counts`` ``(P,)`` of each."""

    def alltoallv(self, send: Array, counts: Counts, out: Array, came: Counts) -> None:
        """Send ``counts`` ``(P,)`` rows to each rank, and fill ``out`` with ``came`` ``(P,)`` rows from each."""

    def allreduce(self, x: Array, op: str) -> None:
        """Put the "sum" or "max" in place of ``x``, which is not empty and has no type of `SUBSTITUTES`."""

    def broadcast(self, x: Array, root: int) -> None:
        """Fill ``x``, which is not empty, on ranks other than ``root``."""

    def exchange(self, leaving: Mapping[int, Array], arriving: Mapping[int, Array]) -> None:
        """Send arrays to other ranks, and fill the arriving ones; empty arrays do not go."""


class Carrier(ABC):
    """Moves contiguous arrays between ranks; only the sender need know their length."""

    rank: int
    size: int

    @abstractmethod
    def _sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None: ...

    @abstractmethod
    def _allgather(self, send: Array) -> Array: ...

    @abstractmethod
    def _allgatherv(self, send: Array, counts: Counts | None) -> tuple[Array, Counts]: ...

    @abstractmethod
    def _alltoallv(self, send: Array, counts: Counts, expected: Counts | None) -> tuple[Array, Counts]: ...

    @abstractmethod
    def _allreduce(self, send: Array, op: str) -> Array: ...

    @abstractmethod
    def _bcast(self, send: Array, root: int) -> Array: ...

    def _alltoall(self, send: Array) -> Array:
        """Send every rank its part of ``send``, all of one length; return the parts for this rank."""
        each = np.full(self.size, len(send) // self.size)
        return self._alltoallv(send, each, each)[0]

    def _trade_rows(self, send: Array, counts: Counts) -> Counts:
        """Return each rank's number of rows (P,); this rank sends ``counts`` (P,) rows like ``send``."""
        heads = self._alltoall(np.stack([header(send, count) for count in counts.tolist()]))
        return np.array([announced_rows(head, send, source) for source, head in enumerate(heads)], np.int64)

    def _rows_of_root(self, send: Array, root: int) -> int:
        return int(self._bcast(np.array([len(send)], np.int64), root)[0])


class DeviceCarrier(Carrier):
    """Moves arrays on devices: ``device`` the rows, ``host`` the lengths that receivers do not know."""

    def __init__(self, host: Carrier, device: Device) -> None:
        self.rank, self.size, self._host, self._device = host.rank, host.size, host, device

    def _sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        if source == self.rank:
            return send.copy()
        head = self._host._sendrecv(header(send, len(send))[None], dest, source)
        leaving = {} if dest is None or dest == self.rank else {dest: send}
        if head is None or source is None:
            self._device.exchange(leaving, {})
            return None
        came = empty_rows(send, announced_rows(head[0], send, source))
        self._device.exchange(leaving, {source: came})
        return came

    def _allgather(self, send: Array) -> Array:
        out = namespace(send).empty((self.size, *send.shape), send.dtype)
        if out.nbytes:
            self._device.allgather(send, out)
        return out

    def _allgatherv(self, send: Array, counts: Counts | None) -> tuple[Array, Counts]:
        counts = np.array(self._host._allgather(np.array(len(send), np.int64)) if counts is None else counts)
        if (counts == len(send)).all():
            return self._allgather(send).reshape(-1, *send.shape[1:]), counts
        out = empty_rows(send, int(counts.sum()))
        self._device.allgatherv(send, out, counts)
        return out, counts

    def _alltoallv(self, send: Array, counts: Counts, expected: Counts | None) -> tuple[Array, Counts]:
        came = self._host._trade_rows(send, counts) if expected is None else expected.copy()
        out = empty_rows(send, int(came.sum()))
        self._device.alltoallv(send, counts, out, came)
        return out, came

    def _allreduce(self, send: Array, op: str) -> Array:
        return reduced(send, op, lambda x: self._device.allreduce(x, op))

    def _bcast(self, send: Array, root: int) -> Array:
        rows = self._host._rows_of_root(send, root)
        out = send.copy() if self.rank == root else empty_rows(send, rows)
        if out.nbytes:
            self._device.broadcast(out, root)
        return out
