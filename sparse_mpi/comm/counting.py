"""Base class of all transports: argument checks, timing, and `Traffic` by one convention.

A transport (`mpi.MPIComm`, a rank of `world.World`, `null.NullComm`) derives from `CountingComm` and only moves
contiguous arrays. *Rows* are the entries of the first axis.

With P ranks and L = ceil(log2 P), one call adds to this rank's counters:

============  ======================  ===================  ====================================
call          sent                    received             messages
============  ======================  ===================  ====================================
sendrecv      bytes                   bytes received       1, without a destination 0
allgather(v)  own bytes * (P - 1)     bytes of the others  L
alltoallv     bytes for others        bytes from others    P - 1, with `expected` the non-empty
allreduce     2 bytes (P - 1) // P    the same             2 L
bcast         bytes * children        bytes, at root 0     children in the binomial tree
barrier       0                       0                    L
============  ======================  ===================  ====================================

Control besides: allgatherv without `counts` costs 4 (P - 1) bytes and L messages; bcast, for the number of
rows, 8 bytes and a message for each child. With ``control=True`` sent bytes count as control and received ones
not at all. Not counted: a rank's messages to itself, and setting up a communicator (`duplicate`, `split` and the
`hosts` of a `Job`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from threading import RLock
from time import perf_counter
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from sparse_mpi.arrays import Array, describe, is_device, namespace, synchronize
from sparse_mpi.comm.base import Counts, Job, RankFailure, Traffic, rounds
from sparse_mpi.comm.carrier import Carrier, Device, DeviceCarrier
from sparse_mpi.comm.job.call_log import CALLS, Watched
from sparse_mpi.comm.reducible import REDUCIBLE
from sparse_mpi.comm.staging import Staging

OPS = ("sum", "max")
_P = ParamSpec("_P")
_R = TypeVar("_R")


def timed(method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[Any, _P], _R]:
    """Time and watch a call of a `CountingComm`, named in `CALLS`."""
    number = CALLS.index(method.__name__)

    @wraps(method)
    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not self._turn.acquire(blocking=False):
            raise RuntimeError(
                f"another thread of this rank is in a call of comm, and ranks would mix it up with {method.__name__}: "
                "give each thread a communicator of its own, as by comm.Dup(), or make all calls from one thread"
            )
        try:
            if self.guarded:
                self._require_running()
            # The third argument of a sendrecv is its source; of other calls the watchdog ignores it.
            if self.watched is not None:
                self.watched.enter(number, args[2] if len(args) > 2 else kwargs.get("source"))
            start = perf_counter()
            try:
                result = method(self, *args, **kwargs)
                if self.guarded:
                    self._confirm()
                return result
            except Exception as error:
                if self._is_rank_failure(error):
                    raise RankFailure(f"a rank of {self.size} failed in {method.__name__}: {error}") from error
                raise
            # A call that raises is over too: its time counts, and the watchdog learns of it.
            finally:
                end = perf_counter()
                if self.watched is not None:
                    self.watched.log.leave()
                self.traffic.seconds += end - start
                if self.traffic.calls is not None:
                    self.traffic.calls.append((start, end))
        finally:
            self._turn.release()

    return call


class CountingComm(Carrier):
    """A communicator that checks, times and counts every call; its ``_call`` moves contiguous arrays.

    ``device``, if there is one, moves arrays on a device. A ``staged`` transport gets host copies.
    """

    staged = True  #: True: arrays on a device pass through host memory on their way
    device: Device | None = None  #: moves arrays on devices, see `Device`
    concurrent = False  #: True: one thread may call it while others compute, or call other communicators
    guarded = False  # True: each call asks `_require_running` and `_confirm`
    watched: Watched | None = None  # notes the calls for the watchdog of this rank, where there is one

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.attributes: dict[object, Any] = {}
        self._turn = RLock()  # held in each call
        self._staging = Staging()
        self.traffic = Traffic()  # shared with communicators split off
        self._rounds = rounds(size)

    @property
    def job(self) -> Job:
        job = Job(self.concurrent, self.staged)
        return job if self.watched is None else job._replace(begin_reduction=self.watched.log.begin_reduction)

    @timed
    def sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        mine, carrier = self._enter(send, rows=True)
        require_rank(self.size, "dest", dest)
        require_rank(self.size, "source", source)
        came = carrier._sendrecv(mine, dest, source)
        leaves, arrives = dest not in (None, self.rank), source not in (None, self.rank)
        self._count(mine.nbytes * leaves, came.nbytes if came is not None and arrives else 0, int(leaves))
        return came if came is None or mine is send else self._unstage(came, send)

    @timed
    def allgather(self, send: Array, control: bool = False) -> Array:
        mine, carrier = self._enter(send)
        gathered = carrier._allgather(mine)
        self._count(mine.nbytes * (self.size - 1), gathered.nbytes - mine.nbytes, self._rounds, control)
        return gathered if mine is send else self._unstage(gathered, send)

    @timed
    def allgatherv(self, send: Array, counts: Sequence[int] | Counts | None = None) -> tuple[Array, Counts]:
        mine, carrier = self._enter(send, rows=True)
        if counts is None:
            # Counts that not all ranks know are gathered first, by the convention in 4 bytes each.
            self._count(4 * (self.size - 1), 0, self._rounds, control=True)
        else:
            counts = per_rank(self.size, "counts", counts)
            if counts[self.rank] != len(mine):
                raise ValueError(f"counts[rank] must be the rows of send ({len(mine)}), got {counts[self.rank]}")
        gathered, counts = carrier._allgatherv(mine, counts)
        self._count(mine.nbytes * (self.size - 1), gathered.nbytes - mine.nbytes, self._rounds)
        return gathered if mine is send else self._unstage(gathered, send), counts

    @timed
    def alltoallv(
        self, send: Array, counts: Sequence[int] | Counts | None = None, expected: Sequence[int] | Counts | None = None
    ) -> tuple[Array, Counts]:
        mine, carrier = self._enter(send, rows=True)
        if counts is None and expected is None:
            if len(mine) % self.size:
                raise ValueError(f"send must have a multiple of {self.size} rows, got {len(mine)}; or pass counts")
            came, own, messages = carrier._alltoall(mine), len(mine) // self.size, self.size - 1
            came_counts = np.full(self.size, own)
        else:
            counts = per_rank(self.size, "counts", () if counts is None else counts, len(mine))
            # Without `expected` a receiver cannot know that a message is empty: all P - 1 are sent.
            own, messages = int(counts[self.rank]), self.size - 1
            if expected is not None:
                expected = per_rank(self.size, "expected", expected)
                if expected[self.rank] != own:
                    raise ValueError(f"expected[rank] must be counts[rank] ({own}), got {expected[self.rank]}")
                messages = int(np.count_nonzero(counts)) - (own > 0)
            came, came_counts = carrier._alltoallv(mine, counts, expected)
        kept = mine.nbytes * own // max(len(mine), 1)  # this rank's message to itself
        self._count(mine.nbytes - kept, came.nbytes - kept, messages)
        return came if mine is send else self._unstage(came, send), came_counts

    @timed
    def allreduce(self, send: Array, op: str = "sum", control: bool = False) -> Array:
        mine, carrier = self._enter(send)
        if op not in OPS:
            raise ValueError(f"op must be one of {OPS}, got {op!r}")
        if mine.dtype not in REDUCIBLE:
            raise TypeError(
                f"send must be of integers, float32 or float64 in native byte order, which MPI can reduce, "
                f"got {mine.dtype}; convert it first, for example send.astype('float32')"
            )
        total = carrier._allreduce(mine, op)
        moved = 2 * mine.nbytes * (self.size - 1) // self.size  # a reduce-scatter, then an allgather
        self._count(moved, moved, 2 * self._rounds, control)
        return total if mine is send else self._unstage(total, send)

    @timed
    def bcast(self, send: Array, root: int = 0, control: bool = False) -> Array:
        mine, carrier = self._enter(send, rows=True)
        require_rank(self.size, "root", root)
        came = carrier._bcast(mine, root)
        children = self._children(root)
        self._count(came.nbytes * children, came.nbytes * (self.rank != root), children, control)
        self._count(8 * children, 0, children, control=True)  # the number of rows, an int64
        return came if mine is send else self._unstage(came, send)

    @timed
    def barrier(self) -> None:
        self._barrier()
        self._count(0, 0, self._rounds)

    def split(self, color: int) -> CountingComm:
        if isinstance(color, bool) or not isinstance(color, (int, np.integer)) or not 0 <= color < 2**31:
            raise ValueError(
                f"color must be a whole number in [0, 2^31), got {color!r}; ranks of one colour belong together"
            )
        part = self._split(int(color))
        part.traffic = self.traffic  # its traffic is counted here
        return part

    @abstractmethod
    def duplicate(self, yield_cpu: bool = False) -> CountingComm: ...

    @abstractmethod
    def _split(self, color: int) -> CountingComm: ...

    @abstractmethod
    def _barrier(self) -> None: ...

    def _require_running(self) -> None:
        """Raise RuntimeError if calls are no longer possible; asked where ``guarded``, as is `_confirm`."""
        return

    def _confirm(self) -> None:
        """Raise RankFailure if a call that has returned may have failed."""
        return

    def _is_rank_failure(self, error: Exception) -> bool:
        return False

    def _enter(self, send: Array, rows: bool = False) -> tuple[Array, Carrier]:
        """Return ``send`` ready to be moved, and its carrier; results need no `_unstage` if unchanged."""
        on_host = isinstance(send, np.ndarray)
        if not (on_host or is_device(send)):
            raise TypeError(f"send must be a NumPy or CuPy array, got {describe(send)}; convert it first")
        if send.dtype.hasobject:
            raise TypeError(f"send must hold plain numbers, got dtype {send.dtype}; give it a numeric dtype")
        # A receiver finds the number of rows by their bytes, so a row has at least one.
        if rows and (send.ndim == 0 or send.itemsize == 0 or 0 in send.shape[1:]):
            raise ValueError(f"send must have rows of at least one byte, got shape {send.shape}; reshape it")
        # Stage: the copy in host memory is contiguous, and complete when it is returned.
        if self.staged and not on_host:
            return self._download(send), self
        # Or give it as it is: what moves it reads memory from beginning to end, without regard to strides, and to
        # streams if it is no `Device`.
        contiguous = send if send.flags.c_contiguous else namespace(send).array(send, order="C")
        if on_host:
            return contiguous, self
        if self.device is None:
            synchronize(contiguous)
            return contiguous, self
        self.device.meet(contiguous)
        return contiguous, DeviceCarrier(self, self.device)

    def _download(self, send: Array) -> np.ndarray:
        return self._staging.download(send)

    def _unstage(self, came: Array, send: Array) -> Array:
        return self._staging.upload(came, send) if self.staged and is_device(send) else came

    def _children(self, root: int) -> int:
        number = (self.rank - root) % self.size
        lowest = number & -number or self.size  # lowest set bit; the root, 0, has none, and passes to all powers of two
        return sum(1 for bit in range(self._rounds) if 1 << bit < lowest and number + (1 << bit) < self.size)

    def _count(self, sent: int, received: int, messages: int, control: bool = False) -> None:
        traffic = self.traffic
        if control:
            traffic.control += sent
        else:
            traffic.sent += sent
            traffic.received += received
        traffic.messages += messages


def require_rank(ranks: int, argument: str, rank: int | None) -> None:
    if rank is not None and not 0 <= rank < ranks:
        raise ValueError(f"{argument} must be a rank in [0, {ranks}), got {rank}")


def per_rank(ranks: int, argument: str, counts: Sequence[int] | Counts, total: int | None = None) -> Counts:
    """Return ``counts`` as (P,) int64; check that their sum is ``total``, if given."""
    rows = np.asarray(counts, dtype=np.int64)
    if rows.shape != (ranks,):
        raise ValueError(f"{argument} must hold the rows of {ranks} ranks, got shape {rows.shape}")
    each = rows.tolist()  # Python adds up a few numbers in a tenth of NumPy's time
    if min(each) < 0:
        raise ValueError(f"{argument} must be >= 0, got {min(each)} for rank {rows.argmin()}")
    if total is not None and sum(each) != total:
        raise ValueError(f"the sum of {argument} must be the rows of send ({total}), got {sum(each)}")
    return rows


def received(rows: Array | None) -> Array:
    if rows is None:
        raise RuntimeError("a message must come from every source, got none; the transport has returned too early")
    return rows
