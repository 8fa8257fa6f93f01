"""`MPIComm`: the transport over MPI. Making one imports mpi4py, which initialises MPI."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, NoReturn

import numpy as np

from sparse_mpi.arrays import Array, is_device, synchronize
from sparse_mpi.comm import rowtypes
from sparse_mpi.comm.base import Counts, Take
from sparse_mpi.comm.buffers import ascending, cut, row_bytes
from sparse_mpi.comm.making import Raw, alone
from sparse_mpi.comm.point_to_point import ALLTOALLV, PointToPoint, Receiving
from sparse_mpi.comm.runtime import (
    PATIENCE,
    first_to_say,
    on_uncaught,
    refuse_singletons,
    require_mpi,
    takes_device_pointers,
    time_limit,
)
from sparse_mpi.comm.staging import Staging
from sparse_mpi.comm.watchdog import Watchdog

MAX_ROWS = 2**31 - 1  # of one MPI_Allgatherv
HELD = 1 << 18  # bytes up to which messages wait to be handed over with the next one


class MPIComm(PointToPoint):
    """A communicator of the ranks of an mpi4py intracommunicator, on a duplicate of it. Making one is collective.

    MPI gets device pointers if it takes them on all ranks: as told by ``cuda_aware``, else by the variable
    SPARSE_MPI_CUDA_AWARE (0 or 1), else by the MPI library itself. Otherwise device arrays go through pinned
    host memory that is kept from call to call. An alltoallv talks to ``bucket`` peers at a time, so that no
    rank is flooded. ``patient`` sleeps between looks at what has come instead of taking a core, as MPI does: for
    a thread that waits while others compute.

    Where MPI allows calls from several threads, a `Watchdog` ends the job when a rank waits for one that has ended its
    program, and when a call takes longer than ``timeout`` seconds (0: any time; None: as the variable
    SPARSE_MPI_TIMEOUT has it). What is made of this communicator shares its watchdog.

    Raises:
        TypeError: ``comm`` is no intracommunicator.
        RuntimeError: MPI was started by a launcher that is not its own.
        ValueError: ``timeout`` or SPARSE_MPI_TIMEOUT is no number of seconds.
    """

    _dog: Watchdog | None
    _whole: MPIComm | None = None  # of which this one was made, and which is in use for as long as this is

    def __init__(
        self,
        comm: Any,
        cuda_aware: bool | None = None,
        bucket: int = 8,
        patient: bool = False,
        timeout: float | None = None,
    ) -> None:
        from mpi4py import MPI

        require_mpi(MPI)
        refuse_singletons(MPI.COMM_WORLD.size)
        if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
            raise TypeError(f"comm must be an mpi4py intracommunicator, a Comm or None, got {comm!r}")
        if bucket < 1:
            raise ValueError(f"bucket must be at least 1 peer, got {bucket}")
        limit = time_limit(timeout)
        with alone(MPI, comm):
            comm = comm.Dup()
            wanted = takes_device_pointers(MPI, comm) if cuda_aware is None else cuda_aware
            self._set_up(Raw(MPI, comm), not comm.allreduce(wanted, MPI.LAND), bucket, patient)
            self._watch(limit)
        self.guard()

    def _set_up(self, raw: Raw, staged: bool, bucket: int, patient: bool) -> None:
        """Make a communicator of ``raw`` itself, without a message."""
        super().__init__(raw.comm.rank, raw.comm.size)
        MPI = raw.mpi
        self._mpi, self._raw, self._comm, self.staged, self._staging = MPI, raw, raw.comm, staged, Staging()
        self._bucket, self._patient = bucket, patient
        self.concurrent = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._rowtypes = raw.rowtypes
        self._dog = None
        self._owns_dog = False
        self._ops = {"sum": MPI.SUM, "max": MPI.MAX}

    def _watch(self, timeout: float) -> None:
        """Have a watchdog watch over all ranks. Collective."""
        if self.concurrent and self.size > 1:
            self._dog = Watchdog(self._mpi, self._comm, timeout, self.elastic)
            self._owns_dog, self.watched = True, self._dog.over(self._comm)

    def _made(self, make: Callable[[], Any], patient: bool) -> MPIComm:
        """Return the communicator over what ``make()`` makes of this one's, with the same watchdog. Collective."""
        self._require_running()
        made = object.__new__(type(self))
        with self._raw.one_more():
            made._set_up(self._raw.add(make(), made), self.staged, self._bucket, patient)
        made._whole = self
        if self._dog is not None:
            made._dog = self._dog
            made.watched = made._raw.watched = self._dog.over(made._comm)
        return made

    def duplicate(self, patient: bool = False) -> MPIComm:
        return self._made(self._comm.Dup, patient)

    def patient(self) -> MPIComm:
        view = copy(self)
        view._patient, view.watched, view._whole = True, None, self
        return view

    def node(self) -> int:
        self._require_running()
        with self._raw.one_more():
            sharing = self._raw.add(self._comm.Split_type(self._mpi.COMM_TYPE_SHARED), self)
        lowest: int = sharing.comm.allreduce(self.rank, self._mpi.MIN)
        sharing.free()
        return lowest

    def _split(self, color: int) -> MPIComm:
        return self._made(lambda: self._comm.Split(color, self.rank), self._patient)

    def _require_running(self) -> None:
        require_mpi(self._mpi)

    def free(self) -> None:
        """Free the duplicated communicator and the datatypes. Collective."""
        if self._owns_dog and self._dog is not None:
            self._dog.free()
        self._raw.free()

    def abort(self, error: BaseException) -> NoReturn:
        """Print the traceback of ``error`` with this rank and end the MPI job."""
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        if first_to_say(text):
            print(f"rank {self.rank} of {self.size} aborts the job\n{text}", file=sys.stderr, flush=True)
        else:
            time.sleep(PATIENCE)  # for the rank that says it to end the job
        self._comm.Abort(1)
        raise error

    def guard(self) -> None:
        if self.size > 1:
            on_uncaught(self.abort)

    def _stage(self, send: Array) -> np.ndarray:
        return self._staging.download(send)

    def _unstage(self, came: Array, send: Array) -> Array:
        return self._staging.upload(came, send) if self.staged and is_device(send) else super()._unstage(came, send)

    def _allgather(self, send: Array) -> Array:
        if send.size > rowtypes.CHUNK:
            gathered, _ = self._allgatherv(send.reshape(-1), np.full(self.size, send.size))
            return gathered.reshape(self.size, *send.shape)
        out = self._empty((self.size, *send.shape), send)
        element = self._rowtypes.of(send.itemsize)
        comm, mine = self._comm, [send, send.size, element]
        self._together(comm.Allgather, comm.Iallgather, mine, [out, send.size, element])
        return out

    def _allgatherv(self, send: Array, counts: Counts | None) -> tuple[Array, Counts]:
        if counts is None:
            counts = self._allgather(np.array(len(send), np.uint32)).astype(np.int64)
        total = int(counts.sum())
        out = self._empty((total, *send.shape[1:]), send)
        rowtype = self._rowtypes.of(row_bytes(send))
        if total <= MAX_ROWS:
            comm, mine = self._comm, [send, len(send), rowtype]
            self._together(comm.Allgatherv, comm.Iallgatherv, mine, [out, counts, rowtype])
            return out, counts.copy()
        for root, part in enumerate(cut(out, counts)):
            if root == self.rank:
                part[...] = send
                synchronize(part)
            self._bcast_rows(part, root)
        return out, counts.copy()

    def _alltoallv(self, send: Array, counts: Counts, expected: Counts | None) -> tuple[Array, Counts]:
        leaving = cut(send, counts)
        if expected is not None:
            return self._alltoallv_known(leaving, send, expected), expected.copy()
        by_rank = dict(self._arriving(leaving, send))
        arriving = [by_rank[rank] for rank in range(self.size)]
        return self._join(arriving), _lengths(arriving)

    def _streamed_alltoallv(self, send: Array, counts: Counts, take: Take) -> None:
        first = self.rank
        run: list[Array] = []  # the rows of ranks from the first one on
        held = 0  # bytes of them
        for source, rows in self._arriving(cut(send, counts), send):
            run.append(rows)
            held += rows.nbytes
            if held > HELD:
                self._hand_over(first, run, take)
                first, run, held = source + 1, [], 0
        if run:
            self._hand_over(first, run, take)

    def _hand_over(self, first: int, run: list[Array], take: Take) -> None:
        """Have the rows of ranks ``first``, ``first + 1``, ... taken; rank 0 follows the last."""
        rows = run[0] if len(run) == 1 else self._join(run)
        for part in ascending(first % self.size, rows, _lengths(run), self.size):
            take(*part)

    def _arriving(self, leaving: list[Array], send: Array) -> Iterator[tuple[int, Array]]:
        """Send all messages; yield the one of this rank to itself, then what comes from the rank above it, and so on.

        While the caller looks at a message, the next one is on its way if it has begun.
        """
        rank, size = self.rank, self.size
        for steps in self._buckets() or [range(0)]:
            # Send to the next peers down the ring, and receive from as many above, who tell how long messages are.
            requests = []
            for step in steps:
                dest = (rank - step) % size
                requests += self._start_sending(leaving[dest], dest, ALLTOALLV)
            if steps.start <= 1:
                yield rank, leaving[rank]
            begun: Receiving | None = None
            for step in steps:
                source = (rank + step) % size
                rows = self._receive(send, source, ALLTOALLV, begun)
                begun = self._begun(send, (source + 1) % size, ALLTOALLV) if step + 1 in steps else None
                yield source, rows
            self._wait(requests)

    def _alltoallv_known(self, leaving: list[Array], send: Array, expected: Counts) -> Array:
        """Receive every message at its final place, and check its length; empty ones are left out on both sides."""
        out = self._empty((int(expected.sum()), *send.shape[1:]), send)
        arriving = cut(out, expected)
        for steps in self._buckets():
            sources = [(self.rank - step) % self.size for step in steps]
            pieces = [
                (source, piece)
                for source in sources
                if len(arriving[source])
                for piece in self._rowtypes.pieces(arriving[source])
            ]
            requests = [self._comm.Irecv(piece, source, ALLTOALLV) for source, piece in pieces]
            for step in steps:
                dest = (self.rank + step) % self.size
                if len(leaving[dest]):
                    requests += self._start_sending(leaving[dest], dest, ALLTOALLV)
            statuses = [self._mpi.Status() for _ in requests]
            self._wait(requests, statuses)
            for (source, (_, rows, rowtype)), status in zip(pieces, statuses, strict=False):
                if status.Get_count(rowtype) != rows:
                    raise ValueError(f"expected[{source}] must be what rank {source} sends, got {expected[source]}")
        arriving[self.rank][...] = leaving[self.rank]
        return out

    def _allreduce(self, send: Array, op: str) -> Array:
        out = self._empty(send.shape, send)
        flat, total = send.reshape(-1), out.reshape(-1)
        for at in range(0, max(send.size, 1), rowtypes.CHUNK):
            part = slice(at, at + rowtypes.CHUNK)
            self._together(self._comm.Allreduce, self._comm.Iallreduce, flat[part], total[part], self._ops[op])
        return out

    def _bcast(self, send: Array, root: int) -> Array:
        rows = np.array([len(send)], np.int64)
        self._together(self._comm.Bcast, self._comm.Ibcast, rows, root)
        out = self._empty((int(rows[0]), *send.shape[1:]), send)
        if self.rank == root:
            out[...] = send
            synchronize(out)
        self._bcast_rows(out, root)
        return out

    def _barrier(self) -> None:
        self._together(self._comm.Barrier, self._comm.Ibarrier)

    def _bcast_rows(self, rows: Array, root: int) -> None:
        for piece in self._rowtypes.pieces(rows):
            self._together(self._comm.Bcast, self._comm.Ibcast, piece, root)

    def _together(self, blocking: Callable[..., None], polled: Callable[..., Any], *args: Any) -> None:
        """Make a collective call: the blocking one, or the one whose end a patient rank polls for."""
        return self._wait([polled(*args)]) if self._patient else blocking(*args)

    def _buckets(self) -> list[range]:
        return [range(at, min(at + self._bucket, self.size)) for at in range(1, self.size, self._bucket)]


def _lengths(parts: list[Array]) -> Counts:
    """Return the rows of each part."""
    return np.array(list(map(len, parts)), np.int64)
