"""The protocols of the transport: `Comm`, messages between ranks, and beside it `Job` and `Elastic`.

A `Comm` is `mpi.MPIComm` over MPI, `process_group.ProcessGroupComm` over torch.distributed, a rank of `world.World` in
one process, `nccl.NcclComm` over one of these and NCCL, or `null.NullComm`; `conversion.as_comm` makes one of what
users have. How to write another one: docs/guides/transport.md. What each call adds to its `Traffic` is said in
`counting`. *Rows* are the entries of the first axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from math import ceil, log2
from operator import add, attrgetter, sub
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable

import numpy as np

from sparse_mpi.arrays import Array

COUNTERS = attrgetter("sent", "received", "messages", "control", "seconds")  # of a `Traffic`


class RankFailure(RuntimeError):
    """Raised from a call that needs a rank which has failed, or on a communicator that another rank has revoked.

    Ranks see it in different calls; some do not see it until another one revokes the communicator.
    """


@dataclass
class Traffic:
    """The counters of what one rank sent and received, by the convention of `counting`."""

    sent: int = 0  #: payload bytes
    received: int = 0  #: payload bytes
    messages: int = 0  #: all messages sent, of control too
    control: int = 0  #: bytes sent for counts, boundaries, histograms
    seconds: float = 0.0  #: inside communication calls; over NCCL the host only queues them
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
    """The whole transport of one rank. Results are new arrays of the library of ``send`` (NumPy or CuPy).

    Treat what `allgather` and `allgatherv` return as read-only: the ranks of one process share one buffer.
    """

    @property
    def rank(self) -> int:
        """Return the number of this rank, from 0."""

    @property
    def size(self) -> int:
        """Return P, how many ranks there are."""

    @property
    def attributes(self) -> dict[object, Any]:
        """Return what users keep with it, by key, as MPI's attributes; a duplicate has none."""

    @property
    def traffic(self) -> Traffic:
        """Return what was counted, on communicators split off this one too."""

    @property
    def job(self) -> Job:
        """Return what the transport says of the processes behind the ranks."""

    def sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        """Send the rows of ``send`` to ``dest`` and return those that come from ``source``; None is no rank.

        Any number of rows may come; their dtype and trailing shape are those of ``send``.
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
        """Send each rank its part of ``send``, cut by ``counts`` (P,).

        Return the rows for this one from all ranks, in rank order, and how many each of them sent (P,). Where every
        rank can give these as ``expected``, empty messages are not sent.
        """

    def allreduce(self, send: Array, op: str = "sum", control: bool = False) -> Array:
        """Return the "sum" or "max" over the ranks, in a new array of the shape of ``send``."""

    def bcast(self, send: Array, root: int = 0, control: bool = False) -> Array:
        """Return the rows of ``root``; on other ranks ``send`` only gives their dtype and trailing shape."""

    def barrier(self) -> None:
        """Wait until every rank has made this call."""

    def duplicate(self, yield_cpu: bool = False) -> Comm:
        """Return a communicator of the same ranks, with messages, traffic and attributes of its own. Collective.

        With ``yield_cpu`` it leaves the core to other threads while it waits, at the price of some latency.
        """

    def split(self, color: int) -> Comm:
        """Return a communicator of the ranks that give the same ``color`` (>= 0), in their order here. Collective.

        Its traffic is counted in this one's. Keep it for use in later steps.
        """


# What an object must have to be taken for a `Comm`; `as_comm` names what is lacking.
MEMBERS = tuple(sorted(name for name in vars(Comm) if not name.startswith("_")))


# Defaults of `Job`.
def _raise(error: BaseException) -> NoReturn:
    raise error


def _nothing(*_: object) -> None:
    return


class Turns(NamedTuple):
    """How background work is started and waited for where threads take turns, as in a `World` with a schedule."""

    start: Callable[[Callable[[], object]], None]  #: has another thread of this rank do the work
    wait_until: Callable[[Callable[[], bool]], None]  #: lets others run until work of this rank has made it true


class Job(NamedTuple):
    """What a transport says, and does, of the processes behind its ranks; by default of threads of one process."""

    concurrent: bool = False  #: whether one thread may call the communicator while others compute, or call another one
    staged: bool = True  #: whether arrays on a device pass through host memory on their way
    elastic: Elastic | None = None  #: what ranks can do that go on after one of them has failed; None: none goes on
    hosts: Callable[[], Counts] | None = None  #: returns a number (P,) of each rank's host; None: all on one
    abort: Callable[[BaseException], NoReturn] = _raise  #: ends the run of all ranks because of an error
    guard: Callable[[], None] = _nothing  #: has an exception that nothing in this process catches do so
    watch: Callable[[float | None], None] = _nothing  #: starts a watchdog, see `sparse_mpi.watch`; collective
    begin_reduction: Callable[[], None] = _nothing  #: says to watchdogs that a reduction begins
    turns: Turns | None = None  #: how threads of a rank take turns, where one of all ranks runs at a time


class Elastic(Protocol):
    """What a communicator offers whose ranks can go on after one of them has failed: calls then raise RankFailure."""

    def broken(self) -> bool:
        """Return whether this rank knows that another one has failed, or has revoked the communicator."""

    def revoke(self) -> None:
        """Make every call here, and on what was split off or duplicated, raise RankFailure on all ranks."""

    def shrink(self) -> Comm:
        """Return a communicator of the ranks that have not failed, in their order here. Collective among them."""

    def yielding(self) -> Comm:
        """Return a view for messages that may take any time: it leaves the core to others, and is not watched over."""

    def exit_without_abort(self, close: Callable[[], None]) -> None:
        """Have an exception that nothing catches end this rank alone; call ``close()`` at the end of the program."""
        return

    def wait_for_end(self) -> None:
        """Wait until all ranks call this at the end of their programs, or until one is known to have failed."""
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
    """Return the lowest of the ranks on the host of this one, itself included. Collective; not counted as traffic."""
    hosts = hosts_of(comm)
    return int((hosts == hosts[comm.rank]).argmax())  # argmax: the first True


def local_rank(comm: Comm) -> tuple[int, int]:
    """Return the number of this rank among those of its host, from 0, and how many they are. Collective."""
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
    return ceil(log2(ranks))


@lru_cache(maxsize=64)
def hashed(text: str) -> int:
    """Return a number of 56 bits, positive as an int64, that stands for a text."""
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=7).digest(), "big")
