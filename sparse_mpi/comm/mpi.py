"""`MPIComm`: the transport over MPI. Making one imports mpi4py, which initialises MPI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import cache
from threading import RLock
from typing import Any

import numpy as np

from sparse_mpi.arrays import Array, synchronize
from sparse_mpi.comm import background, making
from sparse_mpi.comm.base import Counts, Job, RankFailure, hashed
from sparse_mpi.comm.buffers import cut, row_bytes
from sparse_mpi.comm.counting import CountingComm
from sparse_mpi.comm.elastic import ulfm
from sparse_mpi.comm.job.call_log import DUPLICATE
from sparse_mpi.comm.job.mpi_watchdog import MPIWatchdog
from sparse_mpi.comm.job.uncaught import Abort
from sparse_mpi.comm.job.watchdog import WATCHDOG_THREAD, time_limit, wants_watchdog
from sparse_mpi.comm.making import Raw, alone, pieces, rowtype
from sparse_mpi.comm.point_to_point import PointToPoint
from sparse_mpi.comm.runtime import keep_from_children, refuse_singletons, require_mpi, takes_device_pointers

MAX_ROWS = 2**31 - 1  # most rows of one MPI_Allgatherv


@cache
def _end_before_finalize(MPI: Any) -> None:
    """Have ``MPI.Finalize()`` wait for background work and end polls, as at a program's end."""

    def end_and_finalize() -> None:
        background.end()
        WATCHDOG_THREAD.end(MPIWatchdog)
        finalize()

    finalize, MPI.Finalize = MPI.Finalize, end_and_finalize  # attributes of COMM_SELF are deleted too late in MPICH


@contextmanager
def _in_words(MPI: Any, survives: bool) -> Iterator[None]:
    """Explain the error of a job that runs out of communicators; ranks that survive may have another."""
    try:
        yield
    except MPI.Exception as error:
        if survives:
            raise
        raise RuntimeError(
            f"MPI made no communicator: {error}; it can have some thousands: keep fewer that come from duplicate(), "
            "split(), Dup() or Split(), and Free() those of mpi4py"
        ) from error


class MPIComm(CountingComm):
    """A communicator of the ranks of an mpi4py intracommunicator, on its duplicate. Making one is collective.

    MPI gets device pointers if it takes them on all ranks: by ``cuda_aware``, else the variable SPARSE_MPI_CUDA_AWARE
    (0 or 1), else the MPI library itself. Otherwise device arrays go through pinned host memory, reused from call to
    call. For ``yield_cpu`` see `Comm.duplicate`.

    An uncaught exception in this process ends the job. Derived communicators share the watchdog, see
    `sparse_mpi.watch`.

    Raises:
        TypeError: ``comm`` is no intracommunicator.
        RuntimeError: MPI was started by a foreign launcher.
        ValueError: SPARSE_MPI_TIMEOUT or SPARSE_MPI_WATCH has an invalid value.
    """

    guarded = True  # MPI ends a process that calls it too early or too late
    _watchdog: MPIWatchdog | None = None
    _owns_watchdog = False  # True where the watchdog was made: only that communicator frees it
    _whole: MPIComm | None = None  # parent communicator, in use for as long as this is

    def __init__(self, comm: object, cuda_aware: bool | None = None, yield_cpu: bool = False) -> None:
        from mpi4py import MPI

        require_mpi(MPI)
        keep_from_children(MPI.__file__)
        _end_before_finalize(MPI)
        refuse_singletons(MPI.COMM_WORLD.size)
        null = isinstance(comm, MPI.Comm) and comm == MPI.COMM_NULL
        if null or not isinstance(comm, MPI.Intracomm):
            got = "COMM_NULL, of which this process is no rank, or which was freed" if null else repr(comm)
            raise TypeError(f"comm must be an mpi4py intracommunicator, a Comm or None, got {got}")
        limit = time_limit(None)
        unwatched = not wants_watchdog(limit)
        with _in_words(MPI, ulfm.available(MPI)), alone(MPI, comm):
            comm = comm.Dup()
            # Agree: device pointers if all ranks take them, no watchdog if no rank wants one.
            direct = takes_device_pointers(MPI, comm)[0] if cuda_aware is None else cuda_aware
            flags = np.array([direct, unwatched], np.uint8)
            comm.Allreduce(MPI.IN_PLACE, flags, MPI.MIN)  # Launchers may keep variables from ranks of other hosts
            self._set_up(Raw(MPI, comm), not flags[0], yield_cpu, ulfm.available(MPI))
        if not flags[1]:
            self._watch(limit)
        self.job.guard()

    def _set_up(self, raw: Raw, staged: bool, yield_cpu: bool, survives: bool) -> None:
        super().__init__(raw.comm.rank, raw.comm.size)
        MPI = raw.mpi
        self._mpi, self._raw, self._comm, self.staged = MPI, raw, raw.comm, staged
        self._survives = survives
        self._messages = PointToPoint(raw, self._staging, yield_cpu)
        # A progress thread waits inside MPI while other threads call it.
        self.concurrent = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._ops = {"sum": MPI.SUM, "max": MPI.MAX}

    def _made(self, make: Callable[[], Any], yield_cpu: bool) -> MPIComm:
        """Return the communicator over ``make()``, with the same watchdog. Collective."""
        self._require_running()
        # Not by `__init__`, which would duplicate once more. `Raw.add` needs the user before there is a communicator.
        made = object.__new__(MPIComm)
        watched = self.watched
        calling = nullcontext() if watched is None else watched.log.during(DUPLICATE, watched.family)
        with calling, _in_words(self._mpi, self._survives), self._raw.one_more():
            made._set_up(self._raw.add(make(), made), self.staged, yield_cpu, self._survives)
        made._whole = self  # keeps the parent's communicator from being freed
        if self._watchdog is not None:
            made._watchdog = self._watchdog
            made.watched = made._raw.watched = self._watchdog.over(made._comm)
        return made

    def duplicate(self, yield_cpu: bool = False) -> MPIComm:
        return self._made(self._comm.Dup, yield_cpu)

    def yielding(self) -> MPIComm:
        # The view shares the communicator of MPI, so making it is not collective; `_whole` keeps that from being freed.
        view = copy(self)
        view._messages = PointToPoint(self._raw, self._staging, True)
        view.watched, view._whole, view._turn = None, self, RLock()
        return view

    def _split(self, color: int) -> MPIComm:
        # The key of the split is the rank, which keeps the order.
        return self._made(lambda: self._comm.Split(color, self.rank), self._messages.yield_cpu)

    def _remade(self, comm: object) -> MPIComm:
        made = object.__new__(MPIComm)
        made._set_up(Raw(self._mpi, comm), self.staged, self._messages.yield_cpu, self._survives)
        made.traffic = self.traffic
        return made

    @property
    def job(self) -> Job:
        comm, elastic = self._comm, self._elastic if self._survives else None
        abort = Abort(self.rank, self.size, lambda: comm.Abort(1))
        job = super().job._replace(elastic=elastic, hosts=self._hosts, abort=abort, watch=self._watch)
        # `exit_without_abort` has installed its own end, which `guard` would replace.
        return job if elastic is not None and ulfm.END.alone else job._replace(guard=abort.guard)

    @property
    def _elastic(self) -> ulfm.Ulfm:
        return ulfm.Ulfm(self._raw, self._watchdog, self._remade, self.yielding)

    def _hosts(self) -> Counts:
        self._require_running()
        return np.asarray(self._allgather(np.array(hashed(self._mpi.Get_processor_name()))))

    def _watch(self, timeout: float | None) -> None:
        if self._watchdog is not None:
            self._watchdog.timeout = self._watchdog.timeout if timeout is None else time_limit(timeout)
        elif self.concurrent and self.size > 1:
            # A watchdog of ranks that survive makes no communicator
            with nullcontext() if self._survives else alone(self._mpi, self._comm):
                self._watchdog = MPIWatchdog(self._mpi, self._comm, time_limit(timeout), self._survives)
            self._owns_watchdog, self.watched = True, self._watchdog.over(self._comm)

    def _require_running(self) -> None:
        require_mpi(self._mpi)

    def _confirm(self) -> None:
        # Where a rank fails within it, a collective call of Open MPI may return without its part of the data.
        if self._survives and self._elastic.broken():
            raise RankFailure(f"a rank of {self.size} failed within a call that returned")

    def _is_rank_failure(self, error: Exception) -> bool:
        return self._survives and self._elastic.is_rank_failure(error)

    def free(self) -> None:
        """Free the duplicated communicator. Collective."""
        if self._owns_watchdog and self._watchdog is not None:
            self._watchdog.free()
        self._raw.free()

    def _sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        return self._messages.sendrecv(send, dest, source, None if self.watched is None else self.watched.log.received)

    def _allgather(self, send: Array) -> Array:
        if send.size > making.CHUNK:
            # Too many elements for one message: send them as rows of one element.
            gathered, _ = self._allgatherv(send.reshape(-1), np.full(self.size, send.size))
            return gathered.reshape(self.size, *send.shape)
        out = self._messages.empty((self.size, *send.shape), send)
        element = rowtype(self._mpi, send.itemsize)
        self._together("Allgather", [send, send.size, element], [out, send.size, element])
        return out

    def _allgatherv(self, send: Array, counts: Counts | None) -> tuple[Array, Counts]:
        if counts is None:
            # 4 bytes a rank, as `counting` has it.
            counts = np.asarray(self._allgather(np.array(len(send), np.uint32))).astype(np.int64)
        each = counts.tolist()
        total = sum(each)
        out = self._messages.empty((total, *send.shape[1:]), send)
        kind = rowtype(self._mpi, row_bytes(send))
        if total <= MAX_ROWS:
            self._together("Allgatherv", [send, len(send), kind], [out, each, kind])
            return out, counts.copy()
        # MPI_Allgatherv takes displacements as C ints, in rows: more than these are broadcast rank by rank, in pieces.
        for root, part in enumerate(cut(out, counts)):
            if root == self.rank:
                part[...] = send
                synchronize(part)  # the stream has written it before MPI reads it
            self._bcast_rows(part, root)
        return out, counts.copy()

    def _alltoallv(self, send: Array, counts: Counts, expected: Counts | None) -> tuple[Array, Counts]:
        return self._messages.alltoallv(send, counts, expected)

    def _alltoall(self, send: Array) -> Array:
        if len(send) > MAX_ROWS:
            return super()._alltoall(send)
        out, kind = self._messages.empty(send.shape, send), rowtype(self._mpi, row_bytes(send))
        part = len(send) // self.size, kind
        self._together("Alltoall", [send, *part], [out, *part])
        return out

    def _allreduce(self, send: Array, op: str) -> Array:
        if op == "sum" and send.dtype.kind in "iu" and send.itemsize < 4:
            # Vector instructions of Open MPI saturate such sums, which are to wrap around
            return self._allreduce(send.astype(np.int32), op).astype(send.dtype)
        out = self._messages.empty(send.shape, send)
        # MPI requires the same result on all ranks, but leaves the order of a sum to the library.
        if send.size <= making.CHUNK:
            self._together("Allreduce", send, out, self._ops[op])
            return out
        flat, total = send.reshape(-1), out.reshape(-1)
        for at in range(0, send.size, making.CHUNK):
            part = slice(at, at + making.CHUNK)
            self._together("Allreduce", flat[part], total[part], self._ops[op])
        return out

    def _bcast(self, send: Array, root: int) -> Array:
        # MPI_Bcast needs the length on every rank, so that goes first.
        rows = np.array([len(send)], np.int64)
        self._together("Bcast", rows, root)
        out = self._messages.empty((int(rows[0]), *send.shape[1:]), send)
        if self.rank == root:
            out[...] = send
            synchronize(out)
        self._bcast_rows(out, root)
        return out

    def _barrier(self) -> None:
        self._together("Barrier")

    def _bcast_rows(self, rows: Array, root: int) -> None:
        for piece in pieces(self._mpi, rows):
            self._together("Bcast", piece, root)

    def _together(self, call: str, *args: Any) -> None:
        # MPI matches no blocking collective call with a non-blocking one: ``yield_cpu`` is the same on all ranks.
        if self._messages.yield_cpu:
            return self._messages.wait([getattr(self._comm, f"I{call.lower()}")(*args)])
        getattr(self._comm, call)(*args)
