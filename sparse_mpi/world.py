"""Ranks in one process behind the same `Comm` as MPI's: for tests, for simulation and for a login node.

Collective calls are worked out for all ranks at once by the last to come, which keeps 1024 ranks affordable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.baton import Call, DeadlockError, MismatchError, Run
from sparse_mpi.counting import CountingComm, Counts

__all__ = ["DeadlockError", "MismatchError", "World"]

T = TypeVar("T")
MOST_RANKS = 1024
_LONG = 64  # rows a message from which copying message by message beats one gather of all rows


class World:
    """``ranks`` ranks (1 to 1024) in this process.

    Sums are taken in rank order. `allgather` and `allgatherv` return one read-only array to all ranks.
    """

    def __init__(self, ranks: int) -> None:
        if not 1 <= ranks <= MOST_RANKS:
            raise ValueError(f"ranks must be in [1, {MOST_RANKS}], got {ranks}")
        self.size = ranks

    def run(self, fn: Callable[[CountingComm], T]) -> list[T]:
        """``[fn(comm) for every rank]``, run side by side, each with new traffic counters.

        Raises:
            DeadlockError: all unfinished ranks wait.
            MismatchError: ranks called different operations, or with data that does not fit.
            Exception: whatever ``fn`` raised on the first rank that failed.
        """
        return Run(self.size, lambda rank, run: fn(_WorldComm(rank, run))).results()


class _WorldComm(CountingComm):
    """The `Comm` of one rank of a run."""

    def __init__(self, rank: int, run: Run) -> None:
        super().__init__(rank, run.size)
        self._run = run

    def duplicate(self, patient: bool = False) -> _WorldComm:
        return _WorldComm(self.rank, self._run)

    def _sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        """Ends when the message sent was taken, which MPI may leave out for short ones."""
        run, came = self._run, None
        if dest is not None:
            out = (self.rank, dest)
            run.check()
            run.messages[out] = send
            run.wake([dest])
        if source is not None:
            into = (source, self.rank)
            run.wait(self.rank, lambda: into in run.messages, lambda: f"for a message from rank {source}")
            came = run.messages.pop(into).copy()
            run.wake([source])
            if _rows_of(came) != _rows_of(send):
                raise MismatchError(
                    f"rank {source} sent {Call('rows', *_rows_of(came))} "
                    f"to rank {self.rank}, which expects {Call('rows', *_rows_of(send))}"
                )
        if dest is not None:
            run.wait(self.rank, lambda: out not in run.messages, lambda: f"for rank {dest} to take its message")
        return came

    def _allgather(self, send: Array) -> Array:
        call = Call("allgather", send.dtype, send.shape)
        return self._run.meet(self.rank, call, send, lambda sends: _read_only(np.stack(sends)))

    def _allgatherv(self, send: Array, counts: Counts | None) -> tuple[Array, Counts]:
        call = Call("allgatherv", *_rows_of(send), () if counts is None else ("counts",))
        gathered, actual = self._run.meet(self.rank, call, (send, counts), _gathered)
        return gathered, actual.copy()

    def _alltoallv(self, send: Array, counts: Counts, expected: Counts | None) -> tuple[Array, Counts]:
        call = Call("alltoallv", *_rows_of(send), () if expected is None else ("expected",))
        parts, arriving = self._run.meet(self.rank, call, (send, counts, expected), _transposed)
        return parts[self.rank], arriving[self.rank].copy()

    def _allreduce(self, send: Array, op: str) -> Array:
        call = Call("allreduce", send.dtype, send.shape, (op,))
        combine = np.add if op == "sum" else np.maximum
        return self._run.meet(self.rank, call, send, lambda sends: _reduced(sends, combine)).copy()

    def _bcast(self, send: Array, root: int) -> Array:
        call = Call("bcast", *_rows_of(send), (f"root={root}",))
        return self._run.meet(self.rank, call, send, lambda sends: sends[root].copy()).copy()

    def _barrier(self) -> None:
        self._run.meet(self.rank, Call("barrier"), None, lambda _: None)


def _rows_of(send: Array) -> tuple[np.dtype, tuple[int | str, ...]]:
    """What all ranks must have in common where each sends a number of rows of its own."""
    return send.dtype, ("n", *send.shape[1:])


def _read_only(shared: Array) -> Array:
    shared.flags.writeable = False
    return shared


def _reduced(sends: list[Array], combine: np.ufunc) -> Array:
    """All arrays combined in rank order: ((r0 + r1) + r2) + ..."""
    total = sends[0].copy()
    for send in sends[1:]:
        combine(total, send, out=total)
    return total


def _gathered(given: list[tuple[Array, Counts | None]]) -> tuple[Array, Counts]:
    actual = np.array([len(send) for send, _ in given], np.int64)
    for rank, (_, counts) in enumerate(given):
        if counts is not None and not np.array_equal(counts, actual):
            raise MismatchError(f"allgatherv: counts on rank {rank} are not the rows the ranks send, {actual}")
    return _read_only(np.concatenate([send for send, _ in given])), actual


def _transposed(given: list[tuple[Array, Counts, Counts | None]]) -> tuple[list[Array], Counts]:
    """The alltoallv of all ranks: what each receives, and how many rows rank i gets from rank j (P, P)."""
    sends = [send for send, _, _ in given]
    arriving = np.stack([counts for _, counts, _ in given], axis=1)
    for rank, (_, _, expected) in enumerate(given):
        if expected is not None and not np.array_equal(expected, arriving[rank]):
            raise MismatchError(
                f"alltoallv: rank {rank} expected {expected} rows, but the ranks send it {arriving[rank]}"
            )
    total = int(arriving.sum())
    starts = np.cumsum(arriving, axis=0) - arriving  # in the array of the sending rank
    if total > _LONG * arriving.size:
        return [
            np.concatenate([send[at : at + rows] for send, at, rows in zip(sends, *part, strict=True)])
            for part in zip(starts.tolist(), arriving.tolist(), strict=True)
        ], arriving
    first = np.cumsum([0] + [len(send) for send in sends[:-1]])  # of the sending ranks in one array of all rows
    lengths = arriving.ravel()
    ends = np.cumsum(lengths)
    source = np.repeat((starts + first).ravel() - (ends - lengths), lengths) + np.arange(total)
    rows = np.take(np.concatenate(sends), source, axis=0)
    return np.split(rows, np.cumsum(arriving.sum(axis=1))[:-1]), arriving
