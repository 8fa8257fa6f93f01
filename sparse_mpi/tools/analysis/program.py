"""What every rank does in a step, in order: compute, send, wait for messages. Made of recorded calls.

Calls become messages by the textbook schedules of `schedule`, with differences, because it matters here who waits for
whom. An alltoallv posts all its messages at once, as `MPIComm` does, and then waits for all that come. The root of a
broadcast sends to all others itself, as Open MPI was measured to do over TCP between 4 and 8 hosts. Long allgathers and
allreduces go round a ring.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from sparse_mpi.tools.analysis.recording import Call
from sparse_mpi.tools.analysis.schedule import Message, scheduled

RING = 64 << 10  # bytes of a result from which it goes round a ring

Posted = tuple[int, int, float]  # a message: source, dest, bytes
Members = tuple[int, ...]  # the ranks of a communicator


class Round(NamedTuple):
    """A rank computes, then sends, then waits."""

    compute: float  # seconds of processor time
    sends: tuple[int, ...] = ()  # numbers of messages
    receives: tuple[int, ...] = ()


class Program(NamedTuple):
    """A step of all ranks."""

    rounds: list[list[Round]]  # of each rank
    messages: list[Posted]  # by number

    @property
    def ranks(self) -> int:
        """Return P."""
        return len(self.rounds)


def compiled(records: Sequence[Sequence[Call]], tails: Sequence[float] | None = None) -> Program:
    """Return the program of a step in which rank i made the calls ``records[i]``.

    Args:
        records: of all ranks.
        tails: seconds of processor time of each rank after its last call; None: none.

    Raises:
        ValueError: the ranks did not take part in the same collective calls, or wait for messages that nobody sends.
    """
    program = Program([], [])
    # Number all messages first, because a rank's own story has those of others in it.
    collective = {key: _rounds(calls, program.messages) for key, calls in _together(records).items()}
    pairs = _pairs(records, program.messages)
    # Then put every rank's rounds in order.
    for rank, calls in enumerate(records):
        rounds: list[Round] = []
        made: defaultdict[Members, int] = defaultdict(int)
        for place, call in enumerate(calls):
            rounds.append(Round(call.computed))
            if call.name == "sendrecv":
                rounds.append(pairs[rank, place])
            else:
                members = tuple(call.members)
                rounds += collective[members, made[members]].get(rank, [])
                made[members] += 1
        program.rounds.append(rounds + ([] if tails is None else [Round(tails[rank])]))
    return program


def _pairs(records: Sequence[Sequence[Call]], messages: list[Posted]) -> dict[tuple[int, int], Round]:
    """Append the messages of all sendrecvs; return what each sends and receives, by rank and place in its record."""
    calls = {(rank, place): call for rank, of in enumerate(records) for place, call in enumerate(of)}
    calls = {key: call for key, call in calls.items() if call.name == "sendrecv"}
    underway: defaultdict[tuple[Members, int, int], deque[int]] = defaultdict(deque)
    sends = {}
    for (rank, place), call in calls.items():
        sends[rank, place] = tuple(_post(messages, rank, dest, length) for dest, length in call.to.items())
        for number in sends[rank, place]:
            underway[tuple(call.members), rank, messages[number][1]].append(number)
    # Messages of one rank to another arrive in the order in which they were sent.
    found = {}
    for (rank, place), call in calls.items():
        come = underway[tuple(call.members), call.source, rank] if call.source is not None else None
        if come is not None and not come:
            raise ValueError(
                f"records must be of one step of all ranks, but rank {rank} waits for a message that rank "
                f"{call.source} does not send"
            )
        found[rank, place] = Round(0.0, sends[rank, place], () if come is None else (come.popleft(),))
    return found


def _together(records: Sequence[Sequence[Call]]) -> dict[tuple[Members, int], list[Call]]:
    """Return the collective calls by members and number, each as a list of its members' calls."""
    found: defaultdict[tuple[Members, int], dict[int, Call]] = defaultdict(dict)
    for rank, calls in enumerate(records):
        made: defaultdict[Members, int] = defaultdict(int)
        for call in calls:
            if call.name != "sendrecv":
                members = tuple(call.members)
                found[members, made[members]][rank] = call
                made[members] += 1
    for (members, number), made_by in found.items():
        if lacking := sorted(set(members) - set(made_by)):
            raise ValueError(
                f"records must be of one step of all ranks, but rank {lacking[0]} lacks collective call {number + 1} "
                f"of ranks {', '.join(map(str, members))}"
            )
    return {key: [made_by[member] for member in key[0]] for key, made_by in found.items()}


def _rounds(calls: list[Call], messages: list[Posted]) -> dict[int, list[Round]]:
    """Append the messages of a collective call; return what each rank sends and receives, round by round."""
    found: defaultdict[int, list[Round]] = defaultdict(list)
    at_once = calls[0].name == "alltoallv"
    for _, together in groupby(_messages(calls), lambda message: 0 if at_once else message.round):
        sends: defaultdict[int, list[int]] = defaultdict(list)
        receives: defaultdict[int, list[int]] = defaultdict(list)
        for message in together:
            number = _post(messages, message.source, message.dest, message.bytes)
            sends[message.source].append(number)
            receives[message.dest].append(number)
        for rank in sorted(set(sends) | set(receives)):
            found[rank].append(Round(0.0, tuple(sends[rank]), tuple(receives[rank])))
    return found


def _messages(calls: list[Call]) -> list[Message]:
    """Return the messages of a collective call, in ascending order of rounds."""
    call, lengths = calls[0], [call.bytes for call in calls]
    if call.name == "bcast":
        others = [member for member in call.members if member != call.root]
        return [Message(turn, call.root, to, size) for turn, size in enumerate((8, call.bytes)) for to in others]
    if call.name == "allreduce" and call.bytes >= RING:
        shares = [call.bytes * (rank + 1) // len(calls) - call.bytes * rank // len(calls) for rank in range(len(calls))]
        return _ring(shares, call.members, laps=2)
    if call.name == "allgatherv" and sum(lengths) >= RING:
        counts = [m for m in scheduled(calls) if m.round < 0]
        return counts + _ring(lengths, call.members)
    return scheduled(calls)


def _ring(lengths: Sequence[int], members: Sequence[int], laps: int = 1) -> list[Message]:
    """Return the messages in which blocks of ``lengths`` ``(P,)`` bytes go round a ring, P - 1 rounds a lap."""
    size = len(lengths)
    return [
        Message(turn, members[rank], members[(rank + 1) % size], lengths[(rank - turn) % size])
        for turn in range(laps * (size - 1))
        for rank in range(size)
    ]


def _post(messages: list[Posted], source: int, dest: int, length: float) -> int:
    """Append a message; return its number."""
    messages.append((source, dest, length))
    return len(messages) - 1
