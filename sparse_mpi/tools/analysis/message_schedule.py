"""Textbook schedules of all calls: which rank sends how many bytes to which other rank in which round.

`comm.counting` counts by the same schedules, so that bytes and messages, summed over all ranks, equal the counted ones:

- alltoallv: pairwise. In round i = 1 .. P - 1 every rank sends to the rank i above it.
- allgather(v): Bruck's. In round j every rank sends what it has to the rank 2^j below it: ceil(log2 P) rounds.
- allreduce: recursive halving and doubling, for any P: a reduce-scatter of P nearly equal blocks, which is Bruck's
  allgather run backwards, and then that allgather.
- bcast: down a binomial tree; the count goes first, in messages of its own.
- barrier: dissemination of empty messages.

MPI libraries choose other schedules for some lengths, such as rings for long allgathers: these have as many bytes, but
more messages and rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparse_mpi.tools.analysis.recording import Call


class Message(NamedTuple):
    """One message of a collective call."""

    round: int  # within the call, from 0; counts that go first have negative rounds
    source: int
    dest: int
    bytes: int
    control: bool = False


def scheduled(calls: Sequence[Call]) -> list[Message]:
    """Return the messages of a collective call that member i made as ``calls[i]``, in ascending order of rounds."""
    name, members = calls[0].name, calls[0].members
    if any(call.name != name for call in calls):
        raise ValueError(f"calls must be of one collective, got {', '.join(sorted({call.name for call in calls}))}")
    if len(calls) == 1:
        return []
    if name == "alltoallv":
        return _alltoallv(calls)
    messages = _announcement(calls) + _BY_NAME[name](calls)
    return [message._replace(source=members[message.source], dest=members[message.dest]) for message in messages]


def _alltoallv(calls: Sequence[Call]) -> list[Message]:
    """Return the messages of a pairwise exchange: in round i each rank sends to the rank i + 1 above it, or not."""
    size, members = len(calls), calls[0].members
    return [
        Message(gap - 1, members[rank], dest, call.to[dest])
        for gap in range(1, size)
        for rank, call in enumerate(calls)
        if (dest := members[(rank + gap) % size]) in call.to
    ]


def _announcement(calls: Sequence[Call]) -> list[Message]:
    """Return the messages of counts that receivers do not know: 8 bytes down a tree, or 4 gathered from each."""
    if not calls[0].announced:
        return []
    if calls[0].name == "bcast":
        messages = binomial(8, len(calls), _root(calls))
    else:
        messages = bruck([4] * len(calls))
    rounds = messages[-1].round + 1
    return [message._replace(round=message.round - rounds, control=True) for message in messages]


def _allgather(calls: Sequence[Call]) -> list[Message]:
    """Return the messages that gather what every rank sends."""
    return [message._replace(control=calls[0].control) for message in bruck([call.bytes for call in calls])]


def _allreduce(calls: Sequence[Call]) -> list[Message]:
    """Return the messages that reduce blocks, an allgather run backwards, and of the allgather of the sums."""
    size, length, control = len(calls), calls[0].bytes, calls[0].control
    gathering = bruck([length * (rank + 1) // size - length * rank // size for rank in range(size)])
    rounds = gathering[-1].round + 1
    scattering = [Message(rounds - 1 - m.round, m.dest, m.source, m.bytes, control) for m in reversed(gathering)]
    return scattering + [m._replace(round=rounds + m.round, control=control) for m in gathering]


def _bcast(calls: Sequence[Call]) -> list[Message]:
    """Return the messages of a broadcast from the root."""
    messages = binomial(calls[0].bytes, len(calls), _root(calls))
    return [message._replace(control=calls[0].control) for message in messages]


def _root(calls: Sequence[Call]) -> int:
    """Return the position of the root among the members."""
    return calls[0].members.index(calls[0].root)


def _barrier(calls: Sequence[Call]) -> list[Message]:
    """Return empty messages along the paths of an allgather."""
    return bruck([0] * len(calls))


_BY_NAME: dict[str, Callable[[Sequence[Call]], list[Message]]] = {
    "allgather": _allgather,
    "allgatherv": _allgather,
    "allreduce": _allreduce,
    "bcast": _bcast,
    "barrier": _barrier,
}


def bruck(sizes: Sequence[int]) -> list[Message]:
    """Return the messages of an allgather of blocks of ``sizes`` ``(P,)`` bytes, for any P."""
    size, messages, gap = len(sizes), [], 1
    while gap < size:
        held = min(gap, size - gap)
        for rank in range(size):
            length = sum(sizes[(rank + block) % size] for block in range(held))
            messages.append(Message(gap.bit_length() - 1, rank, (rank - gap) % size, length))
        gap *= 2
    return messages


def binomial(length: int, size: int, root: int) -> list[Message]:
    """Return the messages of a broadcast of ``length`` bytes from ``root`` to ``size`` ranks."""
    rounds = (size - 1).bit_length()
    return [
        Message(number, (above + root) % size, (above + gap + root) % size, length)
        for number in range(rounds)
        for gap in [1 << (rounds - 1 - number)]
        for above in range(0, size - gap, 2 * gap)
    ]
