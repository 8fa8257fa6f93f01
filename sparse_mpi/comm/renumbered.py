"""A view of a communicator in which ranks are numbered from another one on: ``comm.renumbered(first)``.

Algorithms in which rank 0 has a part of its own deal that part out over the ranks, by another ``first`` in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm.base import Comm, Counts, Take
from sparse_mpi.comm.buffers import ascending
from sparse_mpi.comm.passing import Passing
from sparse_mpi.comm.traffic import Traffic


class Renumbered(Passing):
    """A view of ``comm`` with rank ``first`` as number 0, ``first + 1`` as 1, and so on. ``comm`` counts its calls."""

    def __init__(self, comm: Comm, first: int) -> None:
        self.size: int = comm.size
        self.rank: int = (comm.rank - first) % comm.size
        self.attributes: dict[object, Any] = {}
        self._comm, self._first = comm, first % comm.size

    @property
    def traffic(self) -> Traffic:
        """Return the traffic of ``comm``."""
        return self._comm.traffic

    @traffic.setter
    def traffic(self, traffic: Traffic) -> None:
        self._comm.traffic = traffic

    @property
    def calls(self) -> list[tuple[float, float]] | None:
        """Return the calls of ``comm``."""
        return self._comm.calls

    @calls.setter
    def calls(self, calls: list[tuple[float, float]] | None) -> None:
        self._comm.calls = calls

    @property
    def concurrent(self) -> bool:
        """Say whether ``comm`` may be called beside others."""
        return self._comm.concurrent

    @concurrent.setter
    def concurrent(self, concurrent: bool) -> None:
        self._comm.concurrent = concurrent

    def sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        return self._comm.sendrecv(send, self._original(dest), self._original(source))

    def allgather(self, send: Array, control: bool = False) -> Array:
        gathered = self._comm.allgather(send, control)
        return namespace(gathered).roll(gathered, -self._first, axis=0)

    def allgatherv(self, send: Array, counts: Sequence[int] | Counts | None = None) -> tuple[Array, Counts]:
        rows, by_rank = self._comm.allgatherv(send, None if counts is None else np.roll(counts, self._first))
        return _rotated(rows, int(by_rank[: self._first].sum())), np.roll(by_rank, -self._first)

    def alltoallv(
        self, send: Array, counts: Sequence[int] | Counts, expected: Sequence[int] | Counts | None = None
    ) -> tuple[Array, Counts]:
        arriving = None if expected is None else np.roll(expected, self._first)
        rows, by_rank = self._comm.alltoallv(*self._leaving(send, counts), arriving)
        return _rotated(rows, int(by_rank[: self._first].sum())), np.roll(by_rank, -self._first)

    def streamed_alltoallv(self, send: Array, counts: Sequence[int] | Counts, take: Take) -> None:
        def hand_over(first: int, rows: Array, by_rank: Counts) -> None:
            for part in ascending((first - self._first) % self.size, rows, by_rank, self.size):
                take(*part)

        self._comm.streamed_alltoallv(*self._leaving(send, counts), hand_over)

    def _leaving(self, send: Array, counts: Sequence[int] | Counts) -> tuple[Array, Counts]:
        """Return rows for all ranks, and how many for each, in the order of ``comm``."""
        after = int(np.sum(counts[: self.size - self._first]))  # of ranks first, first + 1, ... P - 1
        return _rotated(send, after), np.roll(counts, self._first)

    def allreduce(self, send: Array, op: str = "sum", control: bool = False) -> Array:
        return self._comm.allreduce(send, op, control)

    def bcast(self, send: Array, root: int = 0, control: bool = False) -> Array:
        return self._comm.bcast(send, (root + self._first) % self.size, control)

    def barrier(self) -> None:
        self._comm.barrier()

    def duplicate(self, patient: bool = False) -> Comm:
        return self._comm.duplicate(patient).renumbered(self._first)

    def split(self, color: int) -> Comm:
        part = self._comm.split(color)
        numbers = part.duplicate().allgather(np.array(self.rank))  # whose traffic is no step's
        return part.renumbered(int(numbers.argmin()))

    def renumbered(self, first: int) -> Renumbered:
        return Renumbered(self._comm, self._first + first)

    def node(self) -> int:
        nodes = self._comm.duplicate().allgather(np.array(self._comm.node()))  # whose traffic is no step's
        members = np.flatnonzero(nodes == nodes[self._original(self.rank)])
        return int(((members - self._first) % self.size).min())

    def _original(self, number: int | None) -> int | None:
        """Return the rank in ``comm`` of the rank that has this ``number`` here."""
        return None if number is None else (number + self._first) % self.size


def _rotated(rows: Array, start: int) -> Array:
    """Return ``rows`` from row ``start`` on, followed by those before it."""
    return rows if start in (0, len(rows)) else namespace(rows).concatenate([rows[start:], rows[:start]])
