"""`NcclComm`: arrays on a device go over CuPy's NCCL, all others over the communicator it is made from.

    comm = NcclComm(as_comm(group))  # one GPU a rank; as_comm("nccl") is that of the whole job
    reducer = SparseAllreduce(n, comm=comm)

A call of unknown lengths waits for a small exchange of these on the host. Other calls return once they are queued on
the current stream. A thread polls NCCL for failures and for the time of exchanges. If one fails or takes longer than
SPARSE_MPI_TIMEOUT, the thread reports it and aborts the communicator, which ends all waiting kernels. Results are then
undefined; every later call raises.

NCCL's communicator, and its memory on the device, is made by the first call with a device array, also a `sendrecv` of
some ranks. All ranks must make that call, in the same order among their other calls. NCCL waits there for all ranks
without a limit.

NCCL chooses the order of sums, and does not promise the same order on all ranks. docs/guides/gpus.md says between which
ranks and networks it has been tried.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from time import perf_counter
from types import ModuleType
from typing import Any
from weakref import finalize

import numpy as np

from sparse_mpi.arrays import Array, address
from sparse_mpi.comm.base import Comm, Counts, Job
from sparse_mpi.comm.buffers import cut
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.comm.counting import CountingComm
from sparse_mpi.comm.job.watchdog import TIMEOUT, WATCHDOG_THREAD, Watchdog, time_limit

ID_BYTES = 128  # of the number by which NCCL's ranks find each other


class NcclComm(CountingComm):
    """The ranks of ``comm``, each with its own GPU: that of its first array on a device. Collective.

    A duplicate of ``comm`` carries messages on the host; ``yield_cpu`` concerns that alone, see `Comm.duplicate`.

    Raises:
        TypeError: ``comm`` is no `Comm`.
        ImportError: CuPy is not installed on some rank.
        RuntimeError: CuPy finds no NCCL there. Calls also raise it where NCCL fails, for instance because two ranks
            have the same GPU, and after a call that failed or took longer than SPARSE_MPI_TIMEOUT.
        ValueError: the ranks have different versions of NCCL, or SPARSE_MPI_TIMEOUT is no number of seconds; from
            calls, an array is on another GPU than the first one.
    """

    staged = False
    guarded = True
    device: NcclDevice

    def __init__(self, comm: Comm, yield_cpu: bool = False) -> None:
        if not isinstance(comm, Comm):
            raise TypeError(f"comm must be a Comm, got {comm!r}; as_comm makes one of it")
        self._host, self._yield_cpu = comm.duplicate(yield_cpu), yield_cpu
        super().__init__(self._host.rank, self._host.size)
        with same_on_all_ranks(self._host) as say:
            library, limit = _library(), time_limit(None)
            say(NCCL=library.get_version())
        self.device = NcclDevice(library, self._host, limit)
        finalize(self, self.device.close).atexit = False  # other ranks may be gone by then

    def free(self) -> None:
        """Free NCCL's communicator, if there is one, and its memory on the device; the last call. Collective."""
        self.device.close()

    def duplicate(self, yield_cpu: bool = False) -> NcclComm:
        return NcclComm(self._host, yield_cpu)

    def _split(self, color: int) -> NcclComm:
        return NcclComm(self._host.split(color), self._yield_cpu)

    def _require_running(self) -> None:
        self.device.require_running()

    @property
    def job(self) -> Job:
        return self._host.job._replace(concurrent=self.concurrent, staged=self.staged, elastic=None)

    def _sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        return self._host.sendrecv(send, dest, source)

    def _allgather(self, send: Array) -> Array:
        return self._host.allgather(send)

    def _allgatherv(self, send: Array, counts: Counts | None) -> tuple[Array, Counts]:
        return self._host.allgatherv(send, counts)

    def _alltoallv(self, send: Array, counts: Counts, expected: Counts | None) -> tuple[Array, Counts]:
        return self._host.alltoallv(send, counts, expected)

    def _allreduce(self, send: Array, op: str) -> Array:
        return self._host.allreduce(send, op)

    def _bcast(self, send: Array, root: int) -> Array:
        return self._host.bcast(send, root)

    def _barrier(self) -> None:
        self._host.barrier()


class NcclDevice(Watchdog):
    """NCCL's communicator of one device, as a `Device`, and the state of its exchanges; other threads may `poll` it.

    Rows are bytes to NCCL. An exchange is one group of sends and receives, an allgatherv one of broadcasts, so that
    NCCL sends each message into a node once.
    """

    def __init__(self, library: ModuleType, host: Comm, limit: float) -> None:
        super().__init__(host.rank, host.size, limit)
        self._nccl, self._host = library, host
        self.made: Any = None  # NCCL's communicator
        self._number = 0  # of its device
        self._closing = threading.RLock()  # held while a thread asks NCCL, and while the communicator is given up
        self._failure: Exception | None = None
        self._entered = 0.0  # when the exchange began that the host is queueing; 0: it queues none
        self._stream: Any = None  # of the last exchange
        # The event behind that, when it was recorded, and the event that was seen done
        self._event: Any = None
        self._recorded, self._done = 0.0, None

    def meet(self, x: Any) -> None:
        if self.made is None:
            check = same_on_all_ranks(self._host, words=ID_BYTES // 8)
            with check:
                if self.rank == 0:
                    number = self._nccl.get_unique_id()  # bytes, and before CuPy 14 numbers
                    own = number if isinstance(number, bytes) else np.array(number, np.int8)
                    check.words[:] = np.frombuffer(own, np.int64)
            self._number = x.device.id
            with x.device:
                self.made = _communicator(self._nccl, self.size, check.rows[0].tobytes(), self.rank)
            WATCHDOG_THREAD.add(self)
        elif x.device.id != self._number:
            raise ValueError(f"send must be on device {self._number}, as the first array was, got {x.device.id}")

    def allgather(self, send: Array, out: Array) -> None:
        with self.queueing() as (comm, stream):
            comm.allGather(address(send), address(out), send.nbytes, self._nccl.NCCL_UINT8, stream)

    def allgatherv(self, send: Array, out: Array, counts: Counts) -> None:
        with self.queueing() as (comm, stream), self._group():
            for root, rows in enumerate(cut(out, counts)):
                if rows.nbytes:
                    given = address(send if root == self.rank else rows)
                    comm.broadcast(given, address(rows), rows.nbytes, self._nccl.NCCL_UINT8, root, stream)

    def alltoallv(self, send: Array, counts: Counts, out: Array, came: Counts) -> None:
        leaving, arriving = dict(enumerate(cut(send, counts))), dict(enumerate(cut(out, came)))
        arriving.pop(self.rank)[...] = leaving.pop(self.rank)
        self.exchange(leaving, arriving)

    def allreduce(self, x: Array, op: str) -> None:
        kind = getattr(self._nccl, f"NCCL_{x.dtype.name.upper()}")
        with self.queueing() as (comm, stream):
            comm.allReduce(address(x), address(x), x.size, kind, getattr(self._nccl, f"NCCL_{op.upper()}"), stream)

    def broadcast(self, x: Array, root: int) -> None:
        with self.queueing() as (comm, stream):
            comm.broadcast(address(x), address(x), x.nbytes, self._nccl.NCCL_UINT8, root, stream)

    def exchange(self, leaving: Mapping[int, Array], arriving: Mapping[int, Array]) -> None:
        # Within a group sends and receives go on together; one by one each could wait for its peer's.
        with self.queueing() as (comm, stream), self._group():
            for move, messages in ((comm.recv, arriving), (comm.send, leaving)):
                for peer, rows in messages.items():
                    if rows.nbytes:
                        move(address(rows), rows.nbytes, self._nccl.NCCL_UINT8, peer, stream)

    @contextmanager
    def _group(self) -> Iterator[None]:
        self._nccl.groupStart()
        try:
            yield
        finally:  # also after an error: all that this thread calls later would be of the same group
            self._nccl.groupEnd()

    @contextmanager
    def queueing(self) -> Iterator[tuple[Any, int]]:
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
            if self.closed or self._failure is not None:
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
        if self._stream is not None and not self.closed:
            with suppress(Exception):  # failures on the device are raised where results are used
                self._stream.synchronize()
        with self._closing:
            if self.made is not None and not self.closed:
                self.made.destroy()
            self.closed = True


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
