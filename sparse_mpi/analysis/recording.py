"""A communicator that writes down what is called on it: which call, from where, how many bytes for whom."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm, Counts, Traffic
from sparse_mpi.comm.counting import row_bytes
from sparse_mpi.comm.renumbered import Rotated


@dataclass(frozen=True)
class Call:
    """One call of one rank. Ranks are those of the whole communicator, in calls of a part of it too."""

    name: str  # of the method of `Comm`
    where: str  # file and function that called: "oktopk.balance"
    members: Sequence[int]  # the ranks of the communicator that was called
    counted: Traffic  # what it added to this rank's traffic
    bytes: int = 0  # of what this rank brought; in a broadcast, of what came
    control: bool = False  # whether these bytes are control
    to: dict[int, int] = field(default_factory=dict)  # bytes for each other rank that is sent a message
    source: int | None = None  # of sendrecv
    root: int = 0  # of bcast
    announced: bool = False  # whether numbers of rows were exchanged before

    @property
    def phase(self) -> str:
        """What calls of the same purpose have in common."""
        return f"{self.where}: {self.name}"


class RecordingComm:
    """``comm`` itself to all who use it; every call, of what is split off it too, is appended to ``record``.

    ``members`` are the ranks of ``comm`` in the communicator that ``record`` is of; None: it is of ``comm``.
    """

    def __init__(self, comm: Comm, record: list[Call] | None = None, members: Sequence[int] | None = None) -> None:
        self.rank, self.size, self.concurrent = comm.rank, comm.size, comm.concurrent
        self.traffic = comm.traffic
        self.calls: list[tuple[float, float]] | None = None
        self.record: list[Call] = [] if record is None else record
        self._members = range(comm.size) if members is None else members
        self._comm = comm

    def sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        before = self.traffic.copy()
        came = self._comm.sendrecv(send, dest, source)
        to = {} if dest is None or dest == self.rank else {self._members[dest]: send.nbytes}
        sender = None if source is None or source == self.rank else self._members[source]
        self._note("sendrecv", before, bytes=send.nbytes, to=to, source=sender)
        return came

    def allgather(self, send: Array, control: bool = False) -> Array:
        before = self.traffic.copy()
        came = self._comm.allgather(send, control)
        self._note("allgather", before, bytes=send.nbytes, control=control)
        return came

    def allgatherv(self, send: Array, counts: Sequence[int] | Counts | None = None) -> tuple[Array, Counts]:
        before = self.traffic.copy()
        came = self._comm.allgatherv(send, counts)
        self._note("allgatherv", before, bytes=send.nbytes, announced=counts is None)
        return came

    def alltoallv(
        self, send: Array, counts: Sequence[int] | Counts, expected: Sequence[int] | Counts | None = None
    ) -> tuple[Array, Counts]:
        before = self.traffic.copy()
        came = self._comm.alltoallv(send, counts, expected)
        sizes = (np.asarray(counts, np.int64) * row_bytes(send)).tolist()
        to = {
            member: size
            for rank, (member, size) in enumerate(zip(self._members, sizes, strict=True))
            if rank != self.rank and (size or expected is None)
        }
        self._note("alltoallv", before, bytes=sum(to.values()), to=to)
        return came

    def allreduce(self, send: Array, op: str = "sum", control: bool = False) -> Array:
        before = self.traffic.copy()
        came = self._comm.allreduce(send, op, control)
        self._note("allreduce", before, bytes=send.nbytes, control=control)
        return came

    def bcast(self, send: Array, root: int = 0, control: bool = False) -> Array:
        before = self.traffic.copy()
        came = self._comm.bcast(send, root, control)
        self._note("bcast", before, bytes=came.nbytes, control=control, root=self._members[root], announced=True)
        return came

    def barrier(self) -> None:
        before = self.traffic.copy()
        self._comm.barrier()
        self._note("barrier", before)

    def abort(self, error: BaseException) -> NoReturn:
        self._comm.abort(error)

    def guard(self) -> None:
        self._comm.guard()

    def duplicate(self, patient: bool = False) -> RecordingComm:
        return RecordingComm(self._comm.duplicate(patient))

    def split(self, color: int) -> RecordingComm:
        part = self._comm.split(color)
        members = part.duplicate().allgather(np.array(self._members[self.rank]))  # which is in nobody's traffic
        return RecordingComm(part, self.record, tuple(members.tolist()))

    def node(self) -> int:
        return self._comm.node()

    def _note(self, name: str, before: Traffic, **details: Any) -> None:
        self.record.append(Call(name, _place(sys._getframe(2)), self._members, self.traffic - before, **details))


def _place(frame: FrameType | None) -> str:
    """File and function of a frame: of the named function that runs a lambda or comprehension, or that calls through
    a `Rotated`."""
    while frame is not None and frame.f_back is not None:
        if not frame.f_code.co_name.startswith("<") and frame.f_globals.get("__name__") != Rotated.__module__:
            break
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{frame.f_globals.get('__name__', '').rpartition('.')[2]}.{frame.f_code.co_name.lstrip('_')}"
