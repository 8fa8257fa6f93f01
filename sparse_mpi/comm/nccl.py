"""`NcclComm`: arrays on a device go over NCCL, all else over the communicator that it is made from.

    comm = NcclComm(as_comm(group))  # one GPU a rank; as_comm("nccl") is that of the whole job
    reducer = SparseAllreduce(n, comm=comm)

NCCL has neither messages of unknown length nor a barrier, and knows no tags. So a `sendrecv`, a `bcast`, and an
`allgatherv` or `alltoallv` of unknown counts wait for one small exchange of lengths on the host; with counts, or
``expected``, there is none. Rows are bytes to NCCL; an alltoallv is one group of sends and receives. A call returns
when its result is there. Meanwhile NCCL is asked whether it has failed: a call then raises, and so do all later ones.

Sums are added in an order of NCCL's choice, which it does not promise to be the same on all ranks.

Never run on a device so far: the tests pretend NCCL in one process, but for one with one rank, which needs a GPU. Sends
and receives between GPUs are untried, and so is the speed of all of this.
"""

from __future__ import annotations

from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np

from sparse_mpi.arrays import Array, address, is_device, namespace
from sparse_mpi.comm.base import Comm, Counts, Job
from sparse_mpi.comm.buffers import announced_rows, cut, empty_rows, header
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.comm.counting import CountingComm
from sparse_mpi.comm.job.watchdog import TIMEOUT, time_limit
from sparse_mpi.comm.polling import wait_until

ID_BYTES = 128  # of the number by which NCCL's ranks find each other
NOT_READY = 600  # CUDA's status of a stream that is at work


class NcclComm(CountingComm):
    """The ranks of ``comm``, each with a GPU of its own: the device that is current when this is made. Collective.

    A duplicate of ``comm`` carries what stays on the host; ``yield_cpu`` concerns that alone, see `Comm.duplicate`.

    Raises:
        TypeError: ``comm`` is no `Comm`.
        ImportError: CuPy is not installed on some rank.
        RuntimeError: CuPy finds no NCCL there, or NCCL fails, for instance because two ranks have the same GPU. So do
            calls, where NCCL has failed or takes longer than SPARSE_MPI_TIMEOUT.
        ValueError: the ranks have different versions of NCCL, or SPARSE_MPI_TIMEOUT is no number of seconds.
    """

    staged = False
    concurrent = False  # NCCL does not allow two communicators of a device to be busy in an order that ranks choose

    def __init__(self, comm: Comm, yield_cpu: bool = False) -> None:
        if not isinstance(comm, Comm):
            raise TypeError(f"comm must be a Comm, got {comm!r}; as_comm makes one of it")
        self._host = comm.duplicate(yield_cpu)
        self._yield_cpu = yield_cpu
        super().__init__(self._host.rank, self._host.size)
        # Agree that all ranks have NCCL, in one version; the id that rank 0 has drawn travels with that.
        check = same_on_all_ranks(self._host, words=ID_BYTES // 8)
        with check as say:
            self._nccl, self._limit = _library(), time_limit(None)
            say(NCCL=self._nccl.get_version())
            if self.rank == 0:
                made = self._nccl.get_unique_id()  # bytes, and before CuPy 14 numbers
                check.words[:] = np.frombuffer(made if isinstance(made, bytes) else np.array(made, np.int8), np.int64)
        # By NumPy's names. Integers of 16 bits are not among them: `_allreduce` carries them as int32.
        names = "int8 uint8 int32 uint32 int64 uint64 float32 float64".split()
        self._kinds = {name: getattr(self._nccl, f"NCCL_{name.upper()}") for name in names}
        self._ops = {"sum": self._nccl.NCCL_SUM, "max": self._nccl.NCCL_MAX}
        self._comm = _communicator(self._nccl, self.size, check.rows[0].tobytes(), self.rank)

    def free(self) -> None:
        """Free NCCL's communicator and its memory on the device; the last call. Collective."""
        self._comm.destroy()

    def duplicate(self, yield_cpu: bool = False) -> NcclComm:
        return NcclComm(self._host, yield_cpu)

    @property
    def job(self) -> Job:
        return self._host.job._replace(concurrent=self.concurrent, staged=self.staged, elastic=None)

    def _split(self, color: int) -> NcclComm:
        return NcclComm(self._host.split(color), self._yield_cpu)

    def _sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        if not is_device(send):
            return self._host.sendrecv(send, dest, source)
        if source == self.rank:
            return send.copy()
        # The length goes over the host, for NCCL's receive must be queued with the length of its send.
        head = self._host.sendrecv(header(send, len(send))[None], dest, source)
        came = None if head is None or source is None else empty_rows(send, announced_rows(head[0], send, source))
        self._exchange({} if dest is None else {dest: send}, {} if source is None or came is None else {source: came})
        return came

    def _allgather(self, send: Array) -> Array:
        if not is_device(send):
            return self._host.allgather(send)
        out = namespace(send).empty((self.size, *send.shape), send.dtype)
        if send.nbytes:
            self._comm.allGather(address(send), address(out), send.nbytes, self._nccl.NCCL_UINT8, _stream(send))
        self._finish()
        return out

    def _allgatherv(self, send: Array, counts: Counts | None) -> tuple[Array, Counts]:
        if not is_device(send):
            return self._host.allgatherv(send, counts)
        if counts is None:
            counts = np.asarray(self._host.allgather(np.array(len(send), np.int64)))
        # One group of messages, since NCCL's allGather takes arrays of one length only.
        out = empty_rows(send, int(counts.sum()))
        arriving = cut(out, counts)
        arriving[self.rank][...] = send
        self._exchange(dict.fromkeys(range(self.size), send), dict(enumerate(arriving)))
        return out, counts.copy()

    def _alltoallv(self, send: Array, counts: Counts, expected: Counts | None) -> tuple[Array, Counts]:
        if not is_device(send):
            return self._host.alltoallv(send, counts, expected)
        came = self._exchange_counts(send, counts) if expected is None else expected.copy()
        out = empty_rows(send, int(came.sum()))
        leaving, arriving = cut(send, counts), cut(out, came)
        arriving[self.rank][...] = leaving[self.rank]
        self._exchange(dict(enumerate(leaving)), dict(enumerate(arriving)))
        return out, came

    def _exchange_counts(self, send: Array, counts: Counts) -> Counts:
        """Exchange on the host how many rows each rank will send to this one, and return that (P,)."""
        each = np.ones(self.size, np.int64)
        heads, _ = self._host.alltoallv(np.stack([header(send, count) for count in counts.tolist()]), each, each)
        return np.array([announced_rows(head, send, source) for source, head in enumerate(heads)], np.int64)

    def _allreduce(self, send: Array, op: str) -> Array:
        if not is_device(send):
            return self._host.allreduce(send, op)
        carried = send.astype(np.int32) if send.dtype.itemsize == 2 else send.copy()  # NCCL knows no 16-bit integers
        if send.size:
            at, kind = address(carried), self._kinds[carried.dtype.name]
            self._comm.allReduce(at, at, carried.size, kind, self._ops[op], _stream(send))
        # The conversion is queued behind the sum on the same stream; the end of both is waited for.
        total = carried.astype(send.dtype, copy=False)
        self._finish()
        return total

    def _bcast(self, send: Array, root: int) -> Array:
        if not is_device(send):
            return self._host.bcast(send, root)
        rows = self._host.bcast(np.array([len(send)], np.int64), root)
        out = send.copy() if self.rank == root else empty_rows(send, int(rows[0]))
        if out.nbytes:
            at = address(out)
            self._comm.broadcast(at, at, out.nbytes, self._nccl.NCCL_UINT8, root, _stream(send))
        self._finish()
        return out

    def _barrier(self) -> None:
        self._host.barrier()

    def _exchange(self, leaving: dict[int, Array], arriving: dict[int, Array]) -> None:
        """Send ``leaving[q]`` to each other rank q and fill ``arriving[q]`` from there, in one group, nearest first."""
        # Within a group sends and receives go on together; one by one each could wait for its peer's.
        self._nccl.groupStart()
        try:
            for step in range(1, self.size):
                source, dest = (self.rank - step) % self.size, (self.rank + step) % self.size
                for move, peer, rows in (
                    (self._comm.recv, source, arriving.get(source)),
                    (self._comm.send, dest, leaving.get(dest)),
                ):
                    if rows is not None and rows.nbytes:
                        move(address(rows), rows.nbytes, self._nccl.NCCL_UINT8, peer, _stream(rows))
        finally:  # all that this thread calls later would be of the same group
            self._nccl.groupEnd()
        self._finish()

    def _finish(self) -> None:
        """Wait until the current stream has done its work, or NCCL has failed."""
        from cupy import cuda

        stream, begun = cuda.get_current_stream(), perf_counter()

        # The host polls: a wait for the stream might never end where NCCL has failed, for its kernels wait for peers.
        def ended() -> bool:
            status = cuda.runtime.streamQuery(stream.ptr)
            if status != NOT_READY:
                if status:
                    stream.synchronize()  # which raises what has failed on the device
                return True
            self._comm.check_async_error()
            if self._limit and perf_counter() - begun > self._limit:
                raise RuntimeError(f"a call over NCCL must end within {TIMEOUT}={self._limit:g} seconds, it did not")
            return False

        try:
            if self._yield_cpu:
                wait_until(ended)
            else:
                while not ended():
                    pass
        except BaseException:
            # This ends the kernels that wait for peers, and the use of the communicator.
            self._comm.abort()
            raise


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


def _stream(x: Array) -> int:
    return namespace(x).cuda.get_current_stream().ptr
