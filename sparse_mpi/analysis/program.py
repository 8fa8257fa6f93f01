"""What every rank does in a step, in order: compute, send, wait for messages. Made of recorded calls.

Calls become messages by the textbook schedules of `schedule`, with two differences, because it matters here who waits
for whom: an alltoallv posts all its messages at once, as `MPIComm` does, and then waits for all that come; and the root
of a broadcast sends to all others itself, as Open MPI was measured to do over TCP between 4 and 8 hosts.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from sparse_mpi.analysis.recording import Call
from sparse_mpi.analysis.schedule import Message, scheduled

Posted = tuple[int, int, float]  # a message: source, dest, bytes


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
    program = Program([[] for _ in records], [])
    collectives = _together(records)
    underway: defaultdict[tuple[tuple[int, ...], int, int], deque[int]] = defaultdict(deque)
    # Number all messages first, because a rank may be compiled before the one that sends to it.
    plans = {key: _rounds(calls, program.messages) for key, calls in collectives.items()}
    sent = {}
    for rank, calls in enumerate(records):
        for place, call in enumerate(calls):
            if call.name == "sendrecv":
                numbers = [_post(program.messages, rank, dest, length) for dest, length in call.to.items()]
                sent[rank, place] = tuple(numbers)
                for number in numbers:
                    underway[tuple(call.members), rank, program.messages[number][1]].append(number)
    # Then put every rank's rounds in order.
    for rank, calls in enumerate(records):
        made: defaultdict[tuple[int, ...], int] = defaultdict(int)
        for place, call in enumerate(calls):
            members = tuple(call.members)
            if call.name == "sendrecv":
                come: tuple[int, ...] = ()
                if call.source is not None:
                    queue = underway[members, call.source, rank]
                    if not queue:
                        raise ValueError(
                            f"records must be of one step of all ranks, but rank {rank} waits for "
                            f"a message that rank {call.source} does not send"
                        )
                    come = (queue.popleft(),)
                program.rounds[rank].append(Round(call.computed, sent[rank, place], come))
                continue
            rounds = plans[members, made[members]].get(rank, [])
            made[members] += 1
            program.rounds[rank].append(Round(call.computed))
            program.rounds[rank].extend(Round(0.0, sends, receives) for sends, receives in rounds)
        if tails is not None:
            program.rounds[rank].append(Round(tails[rank]))
    return program


def _together(records: Sequence[Sequence[Call]]) -> dict[tuple[tuple[int, ...], int], list[Call]]:
    """Return the collective calls by members and number, each as a list of its members' calls."""
    found: defaultdict[tuple[tuple[int, ...], int], dict[int, Call]] = defaultdict(dict)
    for rank, calls in enumerate(records):
        made: defaultdict[tuple[int, ...], int] = defaultdict(int)
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


def _rounds(calls: list[Call], messages: list[Posted]) -> dict[int, list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Append the messages of a collective call; return what each rank sends and receives, round by round."""
    found: defaultdict[int, list[tuple[tuple[int, ...], tuple[int, ...]]]] = defaultdict(list)
    at_once = calls[0].name == "alltoallv"
    made = _broadcast(calls) if calls[0].name == "bcast" else scheduled(calls)
    for _, together in groupby(made, lambda message: 0 if at_once else message.round):
        sends: defaultdict[int, list[int]] = defaultdict(list)
        receives: defaultdict[int, list[int]] = defaultdict(list)
        for message in together:
            number = _post(messages, message.source, message.dest, message.bytes)
            sends[message.source].append(number)
            receives[message.dest].append(number)
        for rank in sorted(set(sends) | set(receives)):
            found[rank].append((tuple(sends[rank]), tuple(receives[rank])))
    return found


def _broadcast(calls: list[Call]) -> list[Message]:
    """Return the messages of a broadcast in which the root sends to all others: the length first, then the rows."""
    root = calls[0].root
    others = [member for member in calls[0].members if member != root]
    lengths = (8, calls[0].bytes)
    return [Message(number, root, other, length) for number, length in enumerate(lengths) for other in others]


def _post(messages: list[Posted], source: int, dest: int, length: float) -> int:
    """Append a message; return its number."""
    messages.append((source, dest, length))
    return len(messages) - 1
