"""The transport as algorithms see it: the `Comm` protocol, how to get one, and one that moves nothing.

A `Comm` is `mpi.MPIComm` over MPI, `process_group.ProcessGroupComm` over torch.distributed, a rank of `world.World` in
one process, `nccl.NcclComm` over one of these and NCCL, or `NullComm`. What each call adds to its `Traffic` is told in
`counting`. *Rows* are the entries of the first axis.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import numpy as np

from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm.counting import CountingComm, Counts
from sparse_mpi.comm.traffic import Traffic

__all__ = ["Comm", "Counts", "NullComm", "Traffic", "as_comm"]


class Comm(Protocol):
    """The whole transport. Results are new arrays of the library of ``send`` (NumPy or CuPy).

    Treat what `allgather` and `allgatherv` return as read-only: the ranks of one process share one buffer.
    """

    rank: int
    size: int
    traffic: Traffic
    concurrent: bool  # whether one thread may call it while others compute, or call other communicators
    calls: list[tuple[float, float]] | None  # when each call began and ended, from when a list is put here

    def sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        """Send the rows of ``send`` to ``dest`` and return those that come from ``source``.

        None as ``dest`` sends nothing, None as ``source`` receives nothing and returns None. Nobody need know
        how many rows come; their dtype and trailing shape are those of ``send``.
        """

    def allgather(self, send: Array, control: bool = False) -> Array:
        """``(P, *send.shape)``: the arrays of all ranks, which have one shape."""

    def allgatherv(self, send: Array, counts: Sequence[int] | Counts | None = None) -> tuple[Array, Counts]:
        """The rows of all ranks in rank order, and how many came from each (P,).

        ``counts`` (P,) spares exchanging them where every rank knows them already.
        """

    def alltoallv(
        self, send: Array, counts: Sequence[int] | Counts, expected: Sequence[int] | Counts | None = None
    ) -> tuple[Array, Counts]:
        """Send each rank its part of ``send``, cut by ``counts`` (P,); return what comes, and how much (P,).

        ``expected`` (P,) are the rows that will come from each rank. Where every rank can give it, empty
        messages are not sent.
        """

    def allreduce(self, send: Array, op: str = "sum", control: bool = False) -> Array:
        """The "sum" or "max" over the ranks, a new array of the shape of ``send``."""

    def bcast(self, send: Array, root: int = 0, control: bool = False) -> Array:
        """The rows of ``root``. Elsewhere ``send`` only tells dtype and trailing shape."""

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def abort(self, error: BaseException) -> NoReturn:
        """End the run of all ranks because of ``error``."""

    def guard(self) -> None:
        """From here on an exception that nothing in this process catches ends the run of all ranks."""

    def duplicate(self, patient: bool = False) -> Comm:
        """The same ranks with traffic of their own, whose messages meet no others. Collective.

        A ``patient`` one leaves the core to others while it waits, at the price of some latency.
        """

    def split(self, color: int) -> Comm:
        """The ranks that give the same ``color``, in the order that they have here. Collective; keep what it returns.

        Its traffic and calls are those of this one, which they count in: what a step sends is found in one place.

        Raises:
            ValueError: ``color`` is no whole number in [0, 2^31).
        """

    def node(self) -> int:
        """The lowest of the ranks that share memory with this one, itself included. Collective."""


def as_comm(comm: Any = None) -> Comm:
    """``comm`` as a `Comm`: None is MPI's COMM_WORLD, a `Comm` is itself.

    An mpi4py communicator or a torch.distributed process group is wrapped. The wrapper is kept as long as that is; the
    first call for it is collective.

    Raises:
        TypeError: neither of these.
        RuntimeError: MPI was not started by its own launcher.
    """
    if hasattr(comm, "traffic"):  # which no mpi4py communicator has
        return comm
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and isinstance(comm, torch.ProcessGroup):
        from sparse_mpi.comm import process_group

        return process_group.wrapped(comm)
    from sparse_mpi.comm import mpi

    return mpi.wrapped(comm)


class NullComm(CountingComm):
    """Moves nothing: every other rank is taken to hold this rank's data. The control of a benchmark.

    On several ranks that cannot be so for oktopk, whose ranks tell each other what they will send.
    """

    staged = False

    def __init__(self, size: int = 1, rank: int = 0) -> None:
        super().__init__(rank, size)
        self._check_rank("rank", rank)

    def duplicate(self, patient: bool = False) -> NullComm:
        return NullComm(self.size, self.rank)

    def node(self) -> int:
        """0: the ranks are taken to be on one node, as they hold one rank's data."""
        return 0

    def _split(self, color: int) -> NullComm:
        """All ranks: every other one is taken to give the same colour."""
        return self.duplicate()

    def _sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        return None if source is None else send.copy()

    def _allgather(self, send: Array) -> Array:
        return namespace(send).stack([send] * self.size)

    def _allgatherv(self, send: Array, counts: Counts | None) -> tuple[Array, Counts]:
        return namespace(send).concatenate([send] * self.size), np.full(self.size, len(send), np.int64)

    def _alltoallv(self, send: Array, counts: Counts, expected: Counts | None) -> tuple[Array, Counts]:
        own, first = int(counts[self.rank]), int(counts[: self.rank].sum())
        part = send[first : first + own]
        return namespace(send).concatenate([part] * self.size), np.full(self.size, own, np.int64)

    def _allreduce(self, send: Array, op: str) -> Array:
        return send * send.dtype.type(self.size) if op == "sum" else send.copy()

    def _bcast(self, send: Array, root: int) -> Array:
        return send.copy()

    def _barrier(self) -> None:
        pass
