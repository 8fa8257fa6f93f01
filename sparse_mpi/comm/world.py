"""Ranks in one process behind the same `Comm` as MPI's: for tests, simulation and login nodes.

The last rank to make a collective call computes it for all ranks, which makes 1024 ranks affordable. Ranks can fail at
a given step and call, as if killed. A schedule, see `scheduler`, draws the order of ranks and messages that a transport
leaves open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, TypeVar

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.checks import check_instance, check_whole
from sparse_mpi.comm.base import Comm, Counts, Elastic, Job, Turns
from sparse_mpi.comm.counting import CountingComm
from sparse_mpi.comm.scheduler import Call, DeadlockError, Killed, Members, MismatchError, WorldRun

__all__ = ["DeadlockError", "MismatchError", "World"]

T = TypeVar("T")
MAX_RANKS = 1024
_MIN_ROWS_TO_COPY = 64  # a message, on average, from which copying message by message beats one gather of all rows


class World:
    """A world of 1 to 1024 ranks in this process, on simulated nodes.

    Sums are taken in rank order. `allgather` and `allgatherv` return one read-only array to all ranks.

    Args:
        ranks: P, the number of ranks.
        per_node: number of ranks on a node; None: all on one.
        leave: rank -> the step that it does not begin (from 0, counted by `Job.begin_reduction`), or a pair: the step
            and the call there (from 0) before which it fails. `run` returns None for it.
        schedule: a seed (>= 0) from which each `run` draws the order of ranks, and which messages are sent before they
            are received. Background work then takes turns with all ranks. None: one fixed order, and all work done at
            once.

    Raises:
        ValueError: an invalid number of ranks or seed, or ``leave`` names a missing rank.
    """

    def __init__(
        self,
        ranks: int,
        per_node: int | None = None,
        leave: Mapping[int, int | tuple[int, int]] | None = None,
        schedule: int | None = None,
    ) -> None:
        check_whole("ranks", ranks, 1, most=MAX_RANKS)
        if per_node is not None:
            check_whole("per_node", per_node, 1, "rank", "None puts all ranks on one node")
        if schedule is not None:
            check_whole("schedule", schedule, 0, remedy="None is the fixed order")
        check_instance("leave", {} if leave is None else leave, Mapping)
        if wrong := sorted(set(leave or {}).difference(range(ranks))):
            raise ValueError(f"leave must name ranks in [0, {ranks}), got {wrong[0]}")
        self.size: int = ranks
        self.per_node: int = per_node or ranks
        self.schedule: int | None = schedule
        # Rank -> step and call. Call -1 is the beginning of the step, before its first call.
        self.leave: dict[int, tuple[int, int]] = {
            rank: when if isinstance(when, tuple) else (when, -1) for rank, when in (leave or {}).items()
        }

    def run(self, fn: Callable[[Comm], T]) -> list[T]:
        """Run ``fn(comm)`` on every rank, side by side with new traffic counters, and return all results.

        Raises:
            DeadlockError: all unfinished ranks wait.
            MismatchError: ranks called different operations, or with data that does not fit.
            Exception: the error of ``fn`` on the first rank that failed.
        """

        def main(rank: int, run: WorldRun) -> T:
            fate = _Fate(self.leave.get(rank))
            return fn(_WorldComm(rank, run.everybody, self.per_node, fate, self.schedule is not None))

        return WorldRun(self.size, main, self.schedule).results()


@dataclass
class _Fate:
    when: tuple[int, int] | None  # the step and the call in it, -1 for its beginning; None: never
    step: int = -1
    call: int = -1

    def begin_step(self) -> None:
        self.step, self.call = self.step + 1, -2  # the next line makes -1 of it
        self.begin_call()

    def begin_call(self) -> None:
        self.call += 1
        if self.when == (self.step, self.call):
            raise Killed(f"step {self.step}, call {self.call}")


class _WorldComm(CountingComm):
    def __init__(self, number: int, group: Members, per_node: int, fate: _Fate, concurrent: bool) -> None:
        super().__init__(group.members.index(number), len(group.members))
        self._number = number  # this rank's number in the run; `rank` is the number in the group
        self.group = group
        self._per_node = per_node
        self._fate = fate
        self.concurrent = concurrent

    @property
    def job(self) -> Job:
        run = self.group.run
        return Job(
            self.concurrent,
            elastic=_Survival(self),
            hosts=self._hosts,
            begin_reduction=self._fate.begin_step,
            turns=Turns(partial(run.start, self._number), run.wait_until) if self.concurrent else None,
        )

    def _hosts(self) -> Counts:
        return np.array(self.group.members) // self._per_node  # nodes are filled one after the other

    def shrunk(self) -> _WorldComm:
        self._begin_call()
        made = self._of(self.group.survivors(self._number))
        made.traffic = self.traffic  # the survivors go on counting where they did
        return made

    def _of(self, group: Members) -> _WorldComm:
        return _WorldComm(self._number, group, self._per_node, self._fate, self.concurrent)

    def duplicate(self, yield_cpu: bool = False) -> _WorldComm:
        # Where a rank makes one call at a time, and all make the same ones, both share the rendezvous and the messages.
        if not self.concurrent:
            return self._of(self.group)
        groups = self.group.rendezvous(self._number, Call("duplicate"), 0, self.group.split)
        return self._of(groups[0])

    def _split(self, color: int) -> _WorldComm:
        # The last rank to call makes the groups of all colours, so that all members of one share the same object.
        groups = self._rendezvous(Call("split"), color, self.group.split)
        return self._of(groups[color])

    def _begin_call(self) -> None:
        self._fate.begin_call()
        self.group.run.give_way()

    def _sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        """Exchange messages; unlike MPI with short ones, return only once the sent one was received."""
        # Messages are stored by ranks' numbers in the run, not in the group.
        run, members, messages = self.group.run, self.group.members, self.group.messages
        self._begin_call()
        self.group.check()
        waits, came = dest is not None, None
        # Post the own message. It is not copied, for it is the caller's until the receiver has done so; but a schedule
        # may have it copied, as MPI does with short ones, and waited for no longer.
        if dest is not None:
            out = (self._number, members[dest])
            run.check()
            if run.draws is not None and run.draws.random() < 0.5:
                send, waits = send.copy(), False
            messages[out].append(send)
            run.wake(out[1:])
        # Receive: take the other message out, which lets its sender go on.
        if source is not None:
            into = (members[source], self._number)
            self._until(lambda: bool(messages[into]), into[0], lambda: f"for a message from rank {into[0]}")
            came = messages[into].popleft().copy()
            run.wake(into[:1])
            if _rows_of(came) != _rows_of(send):
                raise MismatchError(
                    f"rank {into[0]} sent {Call('rows', *_rows_of(came))} "
                    f"to rank {into[1]}, which expects {Call('rows', *_rows_of(send))}"
                )
        # Wait for the receiver. A message without a receiver ends here, as a deadlock.
        if waits:
            self._until(lambda: not messages[out], out[1], lambda: f"for rank {out[1]} to take its message")
        return came

    def _until(self, done: Callable[[], bool], other: int, reason: Callable[[], str]) -> None:
        # A delivered message counts, even if the other rank has failed since.
        while not done():
            self.group.check([other])
            self.group.run.pause(reason)

    def _rendezvous(self, call: Call, given: object, combine: Callable[[list[Any]], Any]) -> Any:
        self._begin_call()
        return self.group.rendezvous(self._number, call, given, combine)

    def _allgather(self, send: Array) -> Array:
        call = Call("allgather", send.dtype, send.shape)
        return self._rendezvous(call, send, lambda sends: _read_only(np.stack(sends)))

    def _allgatherv(self, send: Array, counts: Counts | None) -> tuple[Array, Counts]:
        # Over MPI, ranks that give counts and ranks that do not would make different calls: here that is an error.
        call = Call("allgatherv", *_rows_of(send), () if counts is None else ("counts",))
        gathered, actual = self._rendezvous(call, (send, counts), partial(_gathered, self.group.members))
        return gathered, actual.copy()  # the caller may write to its own counts

    def _alltoallv(self, send: Array, counts: Counts, expected: Counts | None) -> tuple[Array, Counts]:
        call = Call("alltoallv", *_rows_of(send), () if expected is None else ("expected",))
        parts, arriving = self._rendezvous(call, (send, counts, expected), partial(_transposed, self.group.members))
        return parts[self.rank], arriving[self.rank].copy()

    def _alltoall(self, send: Array) -> Array:
        call = Call("alltoall", send.dtype, send.shape)  # MPI's own call, which matches no other
        parts = self._rendezvous(call, send, lambda sends: np.stack([np.split(x, self.size) for x in sends]))
        return parts[:, self.rank].reshape(send.shape)

    def _allreduce(self, send: Array, op: str) -> Array:
        call = Call("allreduce", send.dtype, send.shape, (op,))
        # In rank order: ((r0 + r1) + r2) + ...
        return np.array(self._rendezvous(call, send, partial(reduce, np.add if op == "sum" else np.maximum)))

    def _bcast(self, send: Array, root: int) -> Array:
        call = Call("bcast", *_rows_of(send), (f"root={root}",))
        return self._rendezvous(call, send, lambda sends: sends[root].copy()).copy()

    def _barrier(self) -> None:
        self._rendezvous(Call("barrier"), None, lambda _: None)


@dataclass
class _Survival(Elastic):
    _comm: _WorldComm

    def broken(self) -> bool:
        return self._comm.group.broken(self._comm.group.members)

    def revoke(self) -> None:
        self._comm.group.revoke()

    def shrink(self) -> Comm:
        return self._comm.shrunk()

    def yielding(self) -> Comm:
        return self._comm


def _rows_of(send: Array) -> tuple[np.dtype, tuple[int | str, ...]]:
    return send.dtype, ("n", *send.shape[1:])


def _read_only(shared: Array) -> Array:
    shared.flags.writeable = False
    return shared


def _gathered(ranks: Sequence[int], given: list[tuple[Array, Counts | None]]) -> tuple[Array, Counts]:
    actual = np.array([len(send) for send, _ in given], np.int64)
    for rank, (_, counts) in zip(ranks, given, strict=True):
        if counts is not None and not np.array_equal(counts, actual):
            raise MismatchError(f"allgatherv: counts on rank {rank} are not the rows the ranks send, {actual}")
    return _read_only(np.concatenate([send for send, _ in given])), actual


def _transposed(
    ranks: Sequence[int], given: list[tuple[Array, Counts, Counts | None]]
) -> tuple[Sequence[Array], Counts]:
    sends = [send for send, _, _ in given]
    # Row i of it has the rows that rank i gets from each rank, column j the rows that rank j sends to each.
    arriving = np.stack([counts for _, counts, _ in given], axis=1)
    for rank, (_, _, expected), rows in zip(ranks, given, arriving, strict=True):
        if expected is not None and not np.array_equal(expected, rows):
            raise MismatchError(f"alltoallv: rank {rank} expected {expected} rows, but the ranks send it {rows}")
    # Where each message begins in the array of the rank that sends it
    total = int(arriving.sum())
    starts = np.cumsum(arriving, axis=0) - arriving
    if total > _MIN_ROWS_TO_COPY * arriving.size:
        # Long messages: copy one after the other
        return [
            np.concatenate([send[at : at + rows] for send, at, rows in zip(sends, *part, strict=True)])
            for part in zip(starts.tolist(), arriving.tolist(), strict=True)
        ], arriving
    # Short messages: one gather of all rows, in the order in which they arrive
    first = np.cumsum([0] + [len(send) for send in sends[:-1]])  # start of each rank's rows in one array of all rows
    lengths = arriving.ravel()
    ends = np.cumsum(lengths)
    # The place in that array of every row that arrives: where its message begins, and its place in the message.
    source = np.repeat((starts + first).ravel() - (ends - lengths), lengths) + np.arange(total)
    rows = np.take(np.concatenate(sends), source, axis=0)
    return np.split(rows, np.cumsum(arriving.sum(axis=1))[:-1]), arriving
