"""A communicator that records the calls on it, and steps of an algorithm that are watched by it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import process_time
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm, Counts, Traffic, forwarding
from sparse_mpi.comm.buffers import row_bytes
from sparse_mpi.comm.world import World
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.sparse import SparseVector
from sparse_mpi_bench.analysis.gradients import Gradients

T = TypeVar("T")
VIEWS = (forwarding.__name__, __name__)


@dataclass(frozen=True)
class RecordedCall:
    """One call of one rank. Ranks are numbered as in the whole communicator, also where a part of the ranks calls."""

    name: str  # name of the method of `Comm`
    where: str  # file and function of the caller, for example "oktopk.balance"
    members: Sequence[int]  # the ranks of the communicator that was called
    counted: Traffic  # its part of this rank's traffic
    bytes: int = 0  # sent by this rank; in a broadcast, received
    control: bool = False  # True: these bytes are control
    to: dict[int, int] = field(default_factory=dict)  # bytes for each other rank that is sent a message
    source: int | None = None  # the sender, in sendrecv
    root: int = 0  # the root, in bcast
    announced: bool = False  # True: the ranks exchanged counts first
    sent: Array | None = None  # the message itself, if messages are recorded; rows for all ranks, in their order
    computed: float = 0.0  # seconds of processor time since this rank's call before, or since `RecordingComm.restart`

    @property
    def phase(self) -> str:
        return f"{self.where}: {self.name}"


class RecordingComm(forwarding.ForwardingComm):
    """A wrapper of ``comm`` that appends every call to ``record``; so do communicators that are split off it."""

    def __init__(
        self,
        comm: Comm,
        record: list[RecordedCall] | None = None,
        members: Sequence[int] | None = None,
        since: list[float] | None = None,
        keep: bool = False,
    ) -> None:
        super().__init__(comm)
        self.record: list[RecordedCall] = [] if record is None else record
        self._members = range(comm.size) if members is None else members
        self._since = [process_time()] if since is None else since
        self._keep = keep

    def sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        before = self._begin()
        received = self._comm.sendrecv(send, dest, source)
        to = {} if dest is None or dest == self.rank else {self._members[dest]: send.nbytes}
        sender = None if source is None or source == self.rank else self._members[source]
        self._note("sendrecv", before, send, bytes=send.nbytes, to=to, source=sender)
        return received

    def allgather(self, send: Array, control: bool = False) -> Array:
        before = self._begin()
        received = self._comm.allgather(send, control)
        self._note("allgather", before, send, bytes=send.nbytes, control=control)
        return received

    def allgatherv(self, send: Array, counts: Sequence[int] | Counts | None = None) -> tuple[Array, Counts]:
        before = self._begin()
        received = self._comm.allgatherv(send, counts)
        self._note("allgatherv", before, send, bytes=send.nbytes, announced=counts is None)
        return received

    def alltoallv(
        self, send: Array, counts: Sequence[int] | Counts | None = None, expected: Sequence[int] | Counts | None = None
    ) -> tuple[Array, Counts]:
        before = self._begin()
        received = self._comm.alltoallv(send, counts, expected)
        name = "alltoallv"
        if counts is None:  # MPI's own call
            name, counts, expected = "alltoall", received[1], received[1]
        sizes = (np.asarray(counts, np.int64) * row_bytes(send)).tolist()
        to = {
            member: size
            for rank, (member, size) in enumerate(zip(self._members, sizes, strict=True))
            if rank != self.rank and (size or expected is None)
        }
        self._note(name, before, send, bytes=sum(to.values()), to=to)
        return received

    def allreduce(self, send: Array, op: str = "sum", control: bool = False) -> Array:
        before = self._begin()
        received = self._comm.allreduce(send, op, control)
        self._note("allreduce", before, send, bytes=send.nbytes, control=control)
        return received

    def bcast(self, send: Array, root: int = 0, control: bool = False) -> Array:
        before = self._begin()
        received = self._comm.bcast(send, root, control)
        first = self._members[root]
        self._note("bcast", before, received, bytes=received.nbytes, control=control, root=first, announced=True)
        return received

    def barrier(self) -> None:
        before = self._begin()
        self._comm.barrier()
        self._note("barrier", before, None)

    def duplicate(self, yield_cpu: bool = False) -> RecordingComm:
        return RecordingComm(self._comm.duplicate(yield_cpu))

    def split(self, color: int) -> RecordingComm:
        part = self._comm.split(color)
        # A duplicate counts traffic of its own, so that this exchange is in no record.
        members = part.duplicate().allgather(np.array(self._members[self.rank]))
        return RecordingComm(part, self.record, tuple(members.tolist()), self._since, self._keep)

    def restart(self) -> None:
        self.record.clear()
        self._since[0] = process_time()

    def computed(self) -> float:
        """Return the processor time since the last call: this rank's, as ranks of a `World` take turns at calls."""
        return process_time() - self._since[0]

    def _begin(self) -> tuple[Traffic, float]:
        return self.traffic.copy(), self.computed()

    def _note(self, name: str, before: tuple[Traffic, float], message: Array | None, **details: Any) -> None:
        if self._keep and message is not None:
            details["sent"] = message.copy()
        traffic, computed = before
        counted = self.traffic - traffic
        self.record.append(
            RecordedCall(name, _place(sys._getframe(2)), self._members, counted, computed=computed, **details)
        )
        self._since[0] = process_time()


def _place(frame: FrameType | None) -> str:
    """Return file and function of a frame: of the named function that led to it, outside of views of a communicator."""
    while frame is not None and frame.f_back is not None:
        if not frame.f_code.co_name.startswith("<") and frame.f_globals.get("__name__") not in VIEWS:
            break
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{frame.f_globals.get('__name__', '').rpartition('.')[2]}.{frame.f_code.co_name.lstrip('_')}"


class Step(NamedTuple):
    number: int  # number of the step, from 0
    gradient: np.ndarray
    total: SparseVector | Array
    reducer: SparseAllreduce
    comm: RecordingComm  # communicator with the calls of this step alone


def watched(
    algorithm: Algorithm,
    gradients: Gradients,
    ranks: int,
    steps: int,
    see: Callable[[Step], T],
    keep: bool = False,
    **options: Any,
) -> list[list[T]]:
    """Return the results of ``see`` after each step of each rank of a `World`; ``options`` go to `SparseAllreduce`."""

    def run(comm: Comm) -> list[T]:
        recording = RecordingComm(comm, keep=keep)
        reducer = SparseAllreduce(gradients.size, comm=recording, algorithm=algorithm, **options)
        seen = []
        for number in range(steps):
            gradient = gradients.at(number, comm.rank)
            recording.restart()
            total = reducer.step(gradient)
            seen.append(see(Step(number, gradient, total, reducer, recording)))
        return seen

    return World(ranks).run(run)
