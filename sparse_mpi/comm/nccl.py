"""`NcclComm`: arrays on a device go over CuPy's NCCL, all others over the communicator it is made from.

    comm = NcclComm(as_comm(group))  # one GPU a rank; as_comm("nccl") is that of the whole job

A call of unknown lengths first exchanges them on the host. Others return once queued on the current stream. If one
fails or takes longer than SPARSE_MPI_TIMEOUT every later call raises, see `NcclWatchdog`.

The first call with a device array, also a `sendrecv` of some ranks, makes NCCL's communicator and its memory on the
device. All ranks must make that call, in the same order among their other calls. NCCL waits there for all ranks without
a limit.

NCCL chooses the order of sums, perhaps not the same on all ranks. docs/guides/gpus.md says between which ranks and
networks it has been tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import finalize

import numpy as np

from sparse_mpi.arrays import Array, address
from sparse_mpi.comm.base import Comm, Counts, Job
from sparse_mpi.comm.buffers import cut
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.comm.counting import CountingComm
from sparse_mpi.comm.job.nccl_watchdog import NcclWatchdog
from sparse_mpi.comm.job.watchdog import time_limit

ID_BYTES = 128  # length of the number by which NCCL's ranks find each other


class NcclComm(CountingComm):
    """The ranks of ``comm``, each with its own GPU, which its first array on a device determines. Collective.

    A duplicate of ``comm`` carries host messages; ``yield_cpu`` concerns it alone, see `Comm.duplicate`.

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
    device: _NcclDevice

    def __init__(self, comm: Comm, yield_cpu: bool = False) -> None:
        if not isinstance(comm, Comm):
            raise TypeError(f"comm must be a Comm, got {comm!r}; as_comm makes one of it")
        self._host, self._yield_cpu = comm.duplicate(yield_cpu), yield_cpu
        super().__init__(self._host.rank, self._host.size)
        with same_on_all_ranks(self._host) as say:
            self.device = _NcclDevice(self._host)
            say(NCCL=self.device.version)
        finalize(self, self.device.watchdog.close).atexit = False  # other ranks may be gone by then

    def free(self) -> None:
        """Free NCCL's communicator, if any, and its memory on the device; the last call. Collective."""
        self.device.watchdog.close()

    def duplicate(self, yield_cpu: bool = False) -> NcclComm:
        return NcclComm(self._host, yield_cpu)

    def _split(self, color: int) -> NcclComm:
        return NcclComm(self._host.split(color), self._yield_cpu)

    def _require_running(self) -> None:
        self.device.watchdog.require_running()

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


class _NcclDevice:
    """NCCL's communicator of one device, as a `Device`.

    Rows are bytes to NCCL. An exchange is one group of sends and receives, an allgatherv one of broadcasts: NCCL sends
    each message into a node once.
    """

    def __init__(self, host: Comm) -> None:
        from cupy.cuda import nccl

        if not nccl.available:
            raise RuntimeError(
                "NCCL must be installed where CuPy finds it, it is not; install nvidia-nccl-cu13 (nvidia-nccl-cu12 "
                "with CUDA 12), or use the communicator without NcclComm"
            )
        self.watchdog: NcclWatchdog = NcclWatchdog(host.rank, host.size, time_limit(None))
        self.version: int = nccl.get_version()
        self._nccl, self._host, self._rank = nccl, host, host.rank
        self._number = 0  # number of the device

    def meet(self, x: Any) -> None:
        if self.watchdog.made is None:
            check = same_on_all_ranks(self._host, words=ID_BYTES // 8)
            with check:
                if self._rank == 0:
                    number = self._nccl.get_unique_id()  # bytes, and before CuPy 14 numbers
                    own = number if isinstance(number, bytes) else np.array(number, np.int8)
                    check.words[:] = np.frombuffer(own, np.int64)
            self._number, words = x.device.id, check.rows[0]
            with x.device:
                try:
                    made = self._nccl.NcclCommunicator(self._host.size, words.tobytes(), self._rank)
                except TypeError:  # CuPy is older than 14
                    made = self._nccl.NcclCommunicator(self._host.size, tuple(words.view(np.int8).tolist()), self._rank)
            self.watchdog.watch(made)
        elif x.device.id != self._number:
            raise ValueError(f"send must be on device {self._number}, as the first array was, got {x.device.id}")

    def allgather(self, send: Array, out: Array) -> None:
        with self.watchdog.queueing() as (comm, stream):
            comm.allGather(address(send), address(out), send.nbytes, self._nccl.NCCL_UINT8, stream)

    def allgatherv(self, send: Array, out: Array, counts: Counts) -> None:
        with self.watchdog.queueing() as (comm, stream), self._group():
            for root, rows in enumerate(cut(out, counts)):
                if rows.nbytes:
                    given = address(send if root == self._rank else rows)
                    comm.broadcast(given, address(rows), rows.nbytes, self._nccl.NCCL_UINT8, root, stream)

    def alltoallv(self, send: Array, counts: Counts, out: Array, came: Counts) -> None:
        leaving, arriving = dict(enumerate(cut(send, counts))), dict(enumerate(cut(out, came)))
        arriving.pop(self._rank)[...] = leaving.pop(self._rank)
        self.exchange(leaving, arriving)

    def allreduce(self, x: Array, op: str) -> None:
        kind = getattr(self._nccl, f"NCCL_{x.dtype.name.upper()}")
        with self.watchdog.queueing() as (comm, stream):
            comm.allReduce(address(x), address(x), x.size, kind, getattr(self._nccl, f"NCCL_{op.upper()}"), stream)

    def broadcast(self, x: Array, root: int) -> None:
        with self.watchdog.queueing() as (comm, stream):
            comm.broadcast(address(x), address(x), x.nbytes, self._nccl.NCCL_UINT8, root, stream)

    def exchange(self, leaving: Mapping[int, Array], arriving: Mapping[int, Array]) -> None:
        # Within a group sends and receives go on together; one by one each could wait for its peer's.
        with self.watchdog.queueing() as (comm, stream), self._group():
            for move, messages in ((comm.recv, arriving), (comm.send, leaving)):
                for peer, rows in messages.items():
                    if rows.nbytes:
                        move(address(rows), rows.nbytes, self._nccl.NCCL_UINT8, peer, stream)

    @contextmanager
    def _group(self) -> Iterator[None]:
        self._nccl.groupStart()
        try:
            yield
        finally:  # needed after errors too: later calls of this thread would join the group
            self._nccl.groupEnd()
