"""The `Comm` protocol: the transport as algorithms see it.

A `Comm` is `mpi.MPIComm` over MPI, `process_group.ProcessGroupComm` over torch.distributed, a rank of `world.World` in
one process, `nccl.NcclComm` over one of these and NCCL, or `null.NullComm`; `conversion.as_comm` makes one of what
users have. What each call adds to its `Traffic` is told in `counting`. *Rows* are the entries of the first axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol, runtime_checkable

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.comm.traffic import Traffic

Counts = np.ndarray  # (P,) int64, in rows
# Takes rows of ranks first, first + 1, ..., in rank order, and how many each of these ranks sent: (first, rows, counts)
Take = Callable[[int, Array, Counts], None]


@runtime_checkable
class Comm(Protocol):
    """The whole transport of one rank. Results are new arrays of the library of ``send`` (NumPy or CuPy).

    Treat what `allgather` and `allgatherv` return as read-only: the ranks of one process share one buffer.
    """

    rank: int
    size: int
    traffic: Traffic
    concurrent: bool  #: whether one thread may call it while others compute, or call other communicators
    calls: list[tuple[float, float]] | None  #: when each call began and ended, from when a list is put here
    attributes: dict[object, Any]  #: what users keep with it, by key, as MPI's attributes; a duplicate has none

    @property
    def staged(self) -> bool:
        """Say whether arrays on a device pass through host memory on their way."""

    @property
    def elastic(self) -> bool:
        """Say whether ranks can go on after one of them has failed: calls that need it then raise RankFailure."""

    def sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        """Send the rows of ``send`` to ``dest`` and return those that come from ``source``.

        None as ``dest`` sends nothing, None as ``source`` receives nothing and returns None. Nobody need know
        how many rows that is; their dtype and trailing shape are those of ``send``.
        """

    def start_sendrecv(self, send: Array, dest: int, source: int) -> Callable[[], Array]:
        """Start a `sendrecv` in which as many rows come as ``send`` has; return what waits for them, and returns them.

        Other calls may be made before that, the same ones on all ranks. Leave ``send`` as it is until then.
        """

    def allgather(self, send: Array, control: bool = False) -> Array:
        """Return the arrays of all ranks, which must have one shape, as ``(P, *send.shape)``."""

    def allgatherv(self, send: Array, counts: Sequence[int] | Counts | None = None) -> tuple[Array, Counts]:
        """Return the rows of all ranks in rank order, and how many each rank sent (P,).

        Give these ``counts`` (P,) where every rank knows them already: then they are not exchanged.
        """

    def alltoallv(
        self, send: Array, counts: Sequence[int] | Counts, expected: Sequence[int] | Counts | None = None
    ) -> tuple[Array, Counts]:
        """Send each rank its part of ``send``, cut by ``counts`` (P,), and return what is for this one.

        That is the rows from all ranks in rank order, and how many each of them sent (P,).

        ``expected`` (P,) are the rows that will come from each rank. Where every rank can give it, empty
        messages are not sent.
        """

    def streamed_alltoallv(self, send: Array, counts: Sequence[int] | Counts, take: Take) -> None:
        """Do as `alltoallv`, but hand over to ``take`` what has come while the rest is on its way.

        Every rank is handed over once, in an order that is not that of the ranks; few bytes come all at once. What
        this rank sends itself may be memory of ``send``. ``take`` makes no calls here, and its time is not counted as
        that of this call, though what is in `calls` has it.
        """

    def allreduce(self, send: Array, op: str = "sum", control: bool = False) -> Array:
        """Return the "sum" or "max" over the ranks, in a new array of the shape of ``send``."""

    def bcast(self, send: Array, root: int = 0, control: bool = False) -> Array:
        """Return the rows of ``root``; on other ranks ``send`` only tells their dtype and trailing shape."""

    def barrier(self) -> None:
        """Wait until every rank has made this call."""

    def abort(self, error: BaseException) -> NoReturn:
        """End the run of all ranks because of ``error``."""

    def begin_reduction(self) -> None:
        """Tell those who watch over the job that a reduction begins."""

    def guard(self) -> None:
        """Have an exception that nothing in this process catches end the run of all ranks, from now on."""

    def broken(self) -> bool:
        """Tell if this rank knows that another one has failed, or has revoked the communicator."""

    def fail_alone(self, close: Callable[[], None]) -> None:
        """Have an exception that nothing in this process catches end this rank only, where the others survive it.

        At the end of the program ``close()`` is called.
        """

    def wait_for_end(self) -> None:
        """Wait until all ranks call this at the end of their programs, or until one is known to have failed.

        A rank that waits in a call for one that is here says so, and ends the job.
        """

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """Return a context that, where `fail_alone` works, ends the process if it is not left in so many seconds."""

    def revoke(self) -> None:
        """Make every call here, and on what was split off or duplicated, raise RankFailure on all ranks."""

    def shrink(self) -> Comm:
        """Return a communicator of the ranks that have not failed, in their order here. Collective among them.

        Raises:
            RuntimeError: this transport is not ``elastic``.
        """

    def duplicate(self, patient: bool = False) -> Comm:
        """Return a communicator of the same ranks, with messages, traffic and attributes of its own. Collective.

        A ``patient`` one leaves the core to other threads while it waits, at the price of some latency.
        """

    def patient(self) -> Comm:
        """Return a view for messages that may take any time: it leaves the core to others, and is not watched over."""

    def split(self, color: int) -> Comm:
        """Return a communicator of the ranks that give the same ``color``, in their order here. Collective.

        Its traffic and calls are counted in this one's, so that what a step sends is found in one place. Keep it for
        use in later steps.

        Raises:
            ValueError: ``color`` is no whole number in [0, 2^31).
        """

    def node(self) -> int:
        """Return the lowest of the ranks that share memory with this one, itself included. Collective."""

    def renumbered(self, first: int) -> Comm:
        """Return a view of this communicator in which rank ``first`` has number 0, ``first + 1`` has 1, and so on.

        All ranks must give the same ``first``, modulo the number of ranks. What the view is told to do is done, and
        counted, by this communicator.
        """
