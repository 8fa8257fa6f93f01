"""`NcclComm`: arrays on a device go over NCCL, all others over the communicator it is made from.

    comm = NcclComm(as_comm(group))  # one GPU a rank; as_comm("nccl") is that of the whole job
    reducer = SparseAllreduce(n, comm=comm)

NCCL has no messages of unknown length, no barrier and no tags. So a `sendrecv`, a `bcast`, and an `allgatherv` or
`alltoallv` of unknown counts wait for one small exchange of lengths on the host; with counts, or ``expected``, there is
none. Rows are bytes to NCCL. An alltoallv is one group of sends and receives; an allgatherv is an allgather, or one
group of broadcasts where lengths differ, so that NCCL sends each message into a node once.

Calls return once they are queued on the current stream; the host does not wait. A thread polls NCCL for failures and
for the time of exchanges. If one fails or takes longer than SPARSE_MPI_TIMEOUT, the thread reports it and aborts the
communicator, which ends all waiting kernels. Results are then undefined; every later call raises.

NCCL's communicator, and its memory on the device, is made by the first call with a device array, also a `sendrecv` of
some ranks. All ranks must make that call, in the same order among their other calls. NCCL waits there for all ranks
without a limit.

NCCL chooses the order of sums, and does not promise the same order on all ranks. docs/guides/gpus.md says between which
ranks and networks it has been tried.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from types import ModuleType
from typing import Any
from weakref import WeakSet, finalize

import numpy as np

from sparse_mpi.arrays import Array, address, is_device, namespace
from sparse_mpi.comm.base import Comm, Counts, Job
from sparse_mpi.comm.buffers import announced_rows, cut, empty_rows, header
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.comm.counting import CountingComm
from sparse_mpi.comm.job.watchdog import TIMEOUT, WATCHDOG_THREAD, Watchdog, time_limit

ID_BYTES = 128  # of the number by which NCCL's ranks find each other


class NcclComm(CountingComm):
    """The ranks of ``comm``, each with its own GPU: the device that is current when this is made. Collective.

    A duplicate of ``comm`` carries messages on the host; ``yield_cpu`` concerns that alone, see `Comm.duplicate`.

    Raises:
        TypeError: ``comm`` is no `Comm`.
        ImportError: CuPy is not installed on some rank.
        RuntimeError: CuPy finds no NCCL there. Calls also raise it where NCCL fails, for instance because two ranks
            have the same GPU, and after a call that failed or took longer than SPARSE_MPI_TIMEOUT.
        ValueError: the ranks have different versions of NCCL, or SPARSE_MPI_TIMEOUT is no number of seconds.
    """

    staged = False
    ordered = True
    guarded = True
    concurrent = False  # NCCL does not allow two communicators of a device to be busy in an order that ranks choose

    def __init__(self, comm: Comm, yield_cpu: bool = False) -> None:
        if not isinstance(comm, Comm):
            raise TypeError(f"comm must be a Comm, got {comm!r}; as_comm makes one of it")
        self._host = comm.duplicate(yield_cpu)
        self._yield_cpu = yield_cpu
        super().__init__(self._host.rank, self._host.size)
        with same_on_all_ranks(self._host) as say:
            self._nccl, self._limit = _library(), time_limit(None)
            say(NCCL=self._nccl.get_version())
        # By NumPy's names. Integers of 16 bits are not among them: `_allreduce` carries them as int32.
        names = "int8 uint8 int32 uint32 int64 uint64 float32 float64".split()
        self._kinds = {name: getattr(self._nccl, f"NCCL_{name.upper()}") for name in names}
        self._ops = {"sum": self._nccl.NCCL_SUM, "max": self._nccl.NCCL_MAX}
        self._link: Link | None = None  # made by the first call with a device array

    def free(self) -> None:
        """Free NCCL's communicator, if there is one, and its memory on the device; the last call. Collective."""
        if self._link is not None:
            self._link.close()

    def duplicate(self, yield_cpu: bool = False) -> NcclComm:
        return NcclComm(self._host, yield_cpu)

    @property
    def job(self) -> Job:
        return self._host.job._replace(concurrent=self.concurrent, staged=self.staged, elastic=None)

    def _split(self, color: int) -> NcclComm:
        return NcclComm(self._host.split(color), self._yield_cpu)

    def _require_running(self) -> None:
        if self._link is not None:
            self._link.require_running()

    def _open(self, send: Array) -> Link:
        """Return the link over NCCL; the first call, which is collective, makes it on the device of ``send``."""
        if self._link is None:
            check = same_on_all_ranks(self._host, words=ID_BYTES // 8)
            with check:
                if self.rank == 0:
                    made = self._nccl.get_unique_id()  # bytes, and before CuPy 14 numbers
                    own = made if isinstance(made, bytes) else np.array(made, np.int8)
                    check.words[:] = np.frombuffer(own, np.int64)
            device: Any = send.device
            with device:
                made = _communicator(self._nccl, self.size, check.rows[0].tobytes(), self.rank)
            self._link = Link(made, self.rank, self.size, self._limit, device)
            finalize(self, self._link.close).atexit = False  # other ranks may be gone by then
        return self._link

    def _sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        if not is_device(send):
            return self._host.sendrecv(send, dest, source)
        link = self._open(send)
        if source == self.rank:
            return send.copy()
        # The length goes over the host, for NCCL's receive must be queued with the length of its send.
        head = self._host.sendrecv(header(send, len(send))[None], dest, source)
        came = None if head is None or source is None else empty_rows(send, announced_rows(head[0], send, source))
        leaving = {} if dest is None else {dest: send}
        self._exchange(link, leaving, {} if source is None or came is None else {source: came})
        return came

    def _allgather(self, send: Array) -> Array:
        if not is_device(send):
            return self._host.allgather(send)
        out = namespace(send).empty((self.size, *send.shape), send.dtype)
        with self._open(send).exchange() as (comm, stream):
            if send.nbytes:
                comm.allGather(address(send), address(out), send.nbytes, self._nccl.NCCL_UINT8, stream)
        return out

    def _allgatherv(self, send: Array, counts: Counts | None) -> tuple[Array, Counts]:
        if not is_device(send):
            return self._host.allgatherv(send, counts)
        link = self._open(send)
        if counts is None:
            counts = np.asarray(self._host.allgather(np.array(len(send), np.int64)))
        if (counts == len(send)).all():
            return self._allgather(send).reshape(-1, *send.shape[1:]), counts.copy()
        # Arrays of different lengths: one group of broadcasts, which NCCL makes side by side.
        out = empty_rows(send, int(counts.sum()))
        with link.exchange() as (comm, stream), self._group():
            for root, rows in enumerate(cut(out, counts)):
                if rows.nbytes:
                    given = address(send if root == self.rank else rows)
                    comm.broadcast(given, address(rows), rows.nbytes, self._nccl.NCCL_UINT8, root, stream)
        return out, counts.copy()

    def _alltoallv(self, send: Array, counts: Counts, expected: Counts | None) -> tuple[Array, Counts]:
        if not is_device(send):
            return self._host.alltoallv(send, counts, expected)
        link = self._open(send)
        came = self._exchange_counts(send, counts) if expected is None else expected.copy()
        out = empty_rows(send, int(came.sum()))
        leaving, arriving = cut(send, counts), cut(out, came)
        arriving[self.rank][...] = leaving[self.rank]
        self._exchange(link, dict(enumerate(leaving)), dict(enumerate(arriving)))
        return out, came

    def _exchange_counts(self, send: Array, counts: Counts) -> Counts:
        each = np.ones(self.size, np.int64)
        heads, _ = self._host.alltoallv(np.stack([header(send, count) for count in counts.tolist()]), each, each)
        return np.array([announced_rows(head, send, source) for source, head in enumerate(heads)], np.int64)

    def _allreduce(self, send: Array, op: str) -> Array:
        if not is_device(send):
            return self._host.allreduce(send, op)
        carried = send.astype(np.int32) if send.dtype.itemsize == 2 else send.copy()  # NCCL knows no 16-bit integers
        with self._open(send).exchange() as (comm, stream):
            if send.size:
                at, kind = address(carried), self._kinds[carried.dtype.name]
                comm.allReduce(at, at, carried.size, kind, self._ops[op], stream)
        return carried.astype(send.dtype, copy=False)

    def _bcast(self, send: Array, root: int) -> Array:
        if not is_device(send):
            return self._host.bcast(send, root)
        link = self._open(send)
        rows = self._host.bcast(np.array([len(send)], np.int64), root)
        out = send.copy() if self.rank == root else empty_rows(send, int(rows[0]))
        with link.exchange() as (comm, stream):
            if out.nbytes:
                at = address(out)
                comm.broadcast(at, at, out.nbytes, self._nccl.NCCL_UINT8, root, stream)
        return out

    def _barrier(self) -> None:
        self._host.barrier()

    def _exchange(self, link: Link, leaving: dict[int, Array], arriving: dict[int, Array]) -> None:
        # Within a group sends and receives go on together; one by one each could wait for its peer's.
        with link.exchange() as (comm, stream), self._group():
            for step in range(1, self.size):
                source, dest = (self.rank - step) % self.size, (self.rank + step) % self.size
                for move, peer, rows in (
                    (comm.recv, source, arriving.get(source)),
                    (comm.send, dest, leaving.get(dest)),
                ):
                    if rows is not None and rows.nbytes:
                        move(address(rows), rows.nbytes, self._nccl.NCCL_UINT8, peer, stream)

    @contextmanager
    def _group(self) -> Iterator[None]:
        self._nccl.groupStart()
        try:
            yield
        finally:  # also after an error: all that this thread calls later would be of the same group
            self._nccl.groupEnd()


class Link(Watchdog):
    """A communicator of NCCL, and the state of its exchanges; other threads may `poll` it."""

    def __init__(self, made: Any, rank: int, size: int, limit: float, device: Any) -> None:
        super().__init__(rank, size, limit)
        self.made, self._device = made, device
        self._closing = threading.RLock()  # held while a thread asks NCCL, and while the communicator is given up
        self._failure: Exception | None = None
        self._entered = 0.0  # when the exchange began that the host is queueing; 0: it queues none
        self._stream: Any = None  # of the last exchange
        # The event behind that, when it was recorded, and the event that was seen done
        self._event: Any = None
        self._recorded, self._done = 0.0, None
        _WATCH.over(self)

    @contextmanager
    def exchange(self) -> Iterator[tuple[Any, int]]:
        """Yield NCCL's communicator and the current stream's address, to queue one exchange."""
        from cupy.cuda import Event, get_current_stream

        self._stream, self._entered = get_current_stream(), perf_counter()
        try:
            yield self.made, self._stream.ptr
            self._event, self._recorded = self._stream.record(Event(disable_timing=True)), perf_counter()
        finally:
            self._entered = 0.0
            self.require_running()  # the error above may come from an abort

    def require_running(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"NCCL must not have failed before a call, it has: {self._failure}") from self._failure

    def poll(self) -> None:
        """Check NCCL for failures and the time of exchanges; abort the communicator if need be."""
        with self._closing:
            if self.made is None or self._failure is not None:
                return
            try:
                self.made.check_async_error()
                if self.timeout and self._late():
                    raise RuntimeError(
                        f"a call over NCCL must end within {TIMEOUT}={self.timeout:g} seconds, it did not"
                    )
            except Exception as error:
                self._failure = error
                self.say(f"gives up NCCL: {error}")
                # This ends the kernels that wait for peers, and so the host's wait.
                self.made.abort()

    def _late(self) -> bool:
        now, entered, event = perf_counter(), self._entered, self._event
        if entered and now - entered > self.timeout:
            return True
        # CUDA is asked once, when the time is over: a question from here would spoil a graph that is being captured
        if event is None or event is self._done or now - self._recorded <= self.timeout:
            return False
        with suppress(Exception):  # of a capture: asked again
            if not event.done:
                return True
            self._done = event
        return False

    def close(self) -> None:
        if self._stream is not None and self.made is not None:
            with suppress(Exception):  # failures on the device are raised where results are used
                self._stream.synchronize()
        with self._closing:
            made, self.made = self.made, None
            if made is not None:
                made.destroy()


class _Watch(Watchdog):
    def __init__(self) -> None:
        super().__init__(0, 1, 0)
        self._links: WeakSet[Link] = WeakSet()
        self._changing = threading.Lock()  # of that set
        self.started = False

    def over(self, link: Link) -> None:
        with self._changing:
            self._links.add(link)
        if not self.started:
            self.started = True
            WATCHDOG_THREAD.add(self)

    def poll(self) -> None:
        with self._changing:
            links = list(self._links)
        for link in links:
            link.poll()


_WATCH = _Watch()


def _library() -> ModuleType:
    from cupy.cuda import nccl

    if not nccl.available:
        raise RuntimeError(
            "NCCL must be installed where CuPy finds it, it is not; install nvidia-nccl-cu13 (nvidia-nccl-cu12 with "
            "CUDA 12), or use the communicator without NcclComm"
        )
    return nccl


def _communicator(nccl: ModuleType, ranks: int, number: bytes, rank: int) -> Any:
    try:
        return nccl.NcclCommunicator(ranks, number, rank)
    except TypeError:  # before CuPy 14
        return nccl.NcclCommunicator(ranks, tuple(np.frombuffer(number, np.int8).tolist()), rank)
