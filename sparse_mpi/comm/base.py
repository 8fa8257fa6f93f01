"""Protocols of the transport: `Comm`, messages between ranks, and beside it `Job` and `Elastic`.

A `Comm` is `mpi.MPIComm` over MPI, `process_group.ProcessGroupComm` over torch.distributed, a rank of `world.World` in
one process, `nccl.NcclComm` over one of these and NCCL, or `null.NullComm`; `conversion.as_comm` wraps users'
communicators. docs/guides/transport.md says how to write one. `counting` defines each call's `Traffic`. *Rows* are the
entries of the first axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from operator import add, attrgetter, sub
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable

import numpy as np

from sparse_mpi.arrays import Array

COUNTERS = attrgetter("sent", "received", "messages", "control", "seconds")  # the fields of a `Traffic`


class RankFailure(RuntimeError):
    """Raised from a call that needs a failed rank, or on a communicator that another rank has revoked.

    Ranks see a failure in different calls, some only when another rank revokes the communicator.
    """


@dataclass
class Traffic:
    """One rank's counters of bytes and messages, by the convention of `counting`."""

    sent: int = 0  #: payload bytes
    received: int = 0  #: payload bytes
    messages: int = 0  #: all messages sent, of control too
    control: int = 0  #: bytes sent for counts, boundaries, histograms
    seconds: float = 0.0  #: time inside communication calls; over NCCL the host only queues them
    #: when each call began and ended, from when a list is put here; no part of copies, sums and differences
    calls: list[tuple[float, float]] | None = field(default=None, compare=False, repr=False)

    def copy(self) -> Traffic:
        """Return the counters as they are now, without ``calls``."""
        return Traffic(*COUNTERS(self))

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*map(add, COUNTERS(self), COUNTERS(other)))

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(*map(sub, COUNTERS(self), COUNTERS(other)))


Counts = np.ndarray  # (P,) int64, in rows


@runtime_checkable
class Comm(Protocol):
    """The transport of one rank. Results are new arrays of the library of ``send`` (NumPy or CuPy).

    Treat results of `allgather` and `allgatherv` as read-only: ranks of one process share one buffer.
    """

    @property
    def rank(self) -> int:
        """Return the number of this rank, from 0."""

    @property
    def size(self) -> int:
        """Return P, the number of ranks."""

    @property
    def attributes(self) -> dict[object, Any]:
        """Return users' cached objects by key, as MPI's attributes; a duplicate has none."""

    @property
    def traffic(self) -> Traffic:
        """Return the counters, which include communicators split off this one."""

    @property
    def job(self) -> Job:
        """Return the transport's view of the processes behind the ranks."""

    def sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        """Send the rows of ``send`` to ``dest`` and return the rows from ``source``; None is no rank.

        Their number is free; dtype and trailing shape are ``send``'s.
        """

    def allgather(self, send: Array, control: bool = False) -> Array:
        """Return the arrays of all ranks, which must have one shape, as ``(P, *send.shape)``."""

    def allgatherv(self, send: Array, counts: Sequence[int] | Counts | None = None) -> tuple[Array, Counts]:
        """Return the rows of all ranks in rank order, and each rank's number of rows (P,).

        Where every rank passes ``counts`` (P,), they are not exchanged.
        """

    def alltoallv(
        self, send: Array, counts: Sequence[int] | Counts | None = None, expected: Sequence[int] | Counts | None = None
    ) -> tuple[Array, Counts]:
        """Send each rank its part of ``send``, cut by ``counts`` (P,); by none, on all ranks, into parts of one length.

        Return the rows for this rank, in rank order, and their number from each rank (P,). Where every rank passes
        these as ``expected``, empty messages are not sent.
        """

    def allreduce(self, send: Array, op: str = "sum", control: bool = False) -> Array:
        """Return the "sum" or "max" over the ranks, in a new array of the shape of ``send``."""

    def bcast(self, send: Array, root: int = 0, control: bool = False) -> Array:
        """Return the rows of ``root``; on other ranks ``send`` only gives their dtype and trailing shape."""

    def barrier(self) -> None:
        """Wait until every rank has made this call."""

    def duplicate(self, yield_cpu: bool = False) -> Comm:
        """Return a communicator of the same ranks, with its own messages, traffic and attributes. Collective.

        With ``yield_cpu`` it yields the core while it waits, at the price of some latency.
        """

    def split(self, color: int) -> Comm:
        """Return a communicator of the ranks with the same ``color`` (>= 0), in their order here. Collective.

        Its traffic is counted in this one's. Reuse it in later steps.
        """


# The members of a `Comm`; `as_comm` names the missing ones.
MEMBERS = tuple(sorted(name for name in vars(Comm) if not name.startswith("_")))


# Defaults of `Job`.
def _raise(error: BaseException) -> NoReturn:
    raise error


def _nothing(*_: object) -> None:
    return


class Turns(NamedTuple):
    start: Callable[[Callable[[], object]], None]  #: has another thread of this rank do the work
    wait_until: Callable[[Callable[[], bool]], None]  #: lets others run until work of this rank has made it true


class Job(NamedTuple):
    """The processes behind a transport's ranks; by default threads of one process."""

    concurrent: bool = False  #: True: one thread may call the communicator while others compute, or call another one
    staged: bool = True  #: True: arrays on a device pass through host memory on their way
    elastic: Elastic | None = None  #: calls for ranks that survive a failure; None: none survives
    hosts: Callable[[], Counts] | None = None  #: returns a number (P,) of each rank's host; None: all on one
    abort: Callable[[BaseException], NoReturn] = _raise  #: ends the run of all ranks because of an error
    guard: Callable[[], None] = _nothing  #: has an uncaught exception in this process do so
    watch: Callable[[float | None], None] = _nothing  #: starts a watchdog, see `sparse_mpi.watch`; collective
    begin_reduction: Callable[[], None] = _nothing  #: says to watchdogs that a reduction begins
    turns: Turns | None = None  #: the order of a rank's threads, where one thread of all ranks runs at a time


class Elastic(Protocol):
    """A communicator with ranks that can go on after one has failed: calls then raise RankFailure."""

    def broken(self) -> bool:
        """Return whether this rank knows that another has failed or revoked the communicator."""

    def revoke(self) -> None:
        """Make every call, also on split or duplicated communicators, raise RankFailure on all ranks."""

    def shrink(self) -> Comm:
        """Return a communicator of the ranks that have not failed, in their order here. Collective among them."""

    def yielding(self) -> Comm:
        """Return a view for messages that may take any time: it yields the core, unwatched."""

    def exit_without_abort(self, close: Callable[[], None]) -> None:
        """Have an uncaught exception end this rank alone; call ``close()`` at the program's end."""
        return

    def wait_for_end(self) -> None:
        """Wait until all ranks call this at the end of their programs, or one is known to have failed."""
        return

    def deadline(self, seconds: float) -> AbstractContextManager[None]:
        """Return a context that ends the process if it is not left within ``seconds``."""
        return nullcontext()


def elastic_of(comm: Comm) -> Elastic:
    elastic = comm.job.elastic
    if elastic is None:
        raise RuntimeError(f"{type(comm).__name__} does not survive the loss of a rank; comm.job.elastic says which do")
    return elastic


def host_leader(comm: Comm) -> int:
    """Return the lowest rank on this rank's host. Collective; not counted as traffic."""
    hosts = hosts_of(comm)
    return int((hosts == hosts[comm.rank]).argmax())  # argmax: the first True


def local_rank(comm: Comm) -> tuple[int, int]:
    """Return this rank's number on its host, from 0, and the number of ranks there. Collective."""
    hosts = hosts_of(comm)
    comm.barrier()  # no rank goes on alone, also where a transport knows the hosts without asking
    here = hosts == hosts[comm.rank]
    return int(here[: comm.rank].sum()), int(here.sum())


def hosts_of(comm: Comm) -> Counts:
    """Return a number of the host of each rank (P,). Collective."""
    hosts = comm.job.hosts
    return np.zeros(comm.size, np.int64) if hosts is None else hosts()


def rounds(ranks: int) -> int:
    """Return L = ceil(log2 P), the depth of a binary tree over P ranks."""
    return (ranks - 1).bit_length()


@lru_cache(maxsize=64)
def hashed(text: str) -> int:
    """Return a number of 56 bits, positive as an int64, that stands for a text."""
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=7).digest(), "big")
