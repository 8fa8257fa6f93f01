"""`NullComm`: a communicator that moves nothing."""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm.base import Counts
from sparse_mpi.comm.counting import CountingComm, require_rank


class NullComm(CountingComm):
    """A communicator that moves nothing, for benchmarks: other ranks are taken to hold this rank's data.

    oktopk needs one rank: its ranks send messages of other lengths. elect needs a k that P divides, or of 64 P or more.
    """

    staged = False

    def __init__(self, size: int = 1, rank: int = 0) -> None:
        super().__init__(rank, size)
        require_rank(size, "rank", rank)

    def duplicate(self, yield_cpu: bool = False) -> NullComm:
        return NullComm(self.size, self.rank)

    def _split(self, color: int) -> NullComm:
        return self.duplicate()

    def _sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        return None if source is None else send.copy()

    def _allgather(self, send: Array) -> Array:
        return namespace(send).stack([send] * self.size)

    def _allgatherv(self, send: Array, counts: Counts | None) -> tuple[Array, Counts]:
        return namespace(send).concatenate([send] * self.size), np.full(self.size, len(send), np.int64)

    def _alltoallv(self, send: Array, counts: Counts, expected: Counts | None) -> tuple[Array, Counts]:
        # All ranks have this rank's data: each sends this one the rows that this one keeps for itself.
        own, first = int(counts[self.rank]), int(counts[: self.rank].sum())
        part = send[first : first + own]
        return namespace(send).concatenate([part] * self.size), np.full(self.size, own, np.int64)

    def _allreduce(self, send: Array, op: str) -> Array:
        return send * send.dtype.type(self.size) if op == "sum" else send.copy()

    def _bcast(self, send: Array, root: int) -> Array:
        return send.copy()

    def _barrier(self) -> None:
        pass
