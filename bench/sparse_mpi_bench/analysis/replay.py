"""Textbook schedules of all calls: which rank sends how many bytes to which other rank in which round.

`comm.counting` counts by the same schedules, so that bytes and messages, summed over all ranks, equal the counted ones:

- alltoallv, alltoall: pairwise. In round i = 1 .. P - 1 every rank sends to the rank i above it.
- allgather(v): Bruck's. In round j every rank sends all its blocks to the rank 2^j below it: ceil(log2 P) rounds.
- allreduce: recursive halving and doubling, for any P: a reduce-scatter of P nearly equal blocks, which is Bruck's
  allgather run backwards, and then that allgather.
- bcast: down a binomial tree; the count goes first, in messages of its own.
- barrier: dissemination of empty messages.

MPI libraries choose other schedules for some lengths, for example rings for long allgathers: the same bytes in more
messages and rounds.

A replay lays messages out in time. One leaves when the sender has completed its round before, and takes alpha + beta x
bytes; a rank has completed a round when all its messages of the round have left and arrived.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, NoReturn

import numpy as np

from sparse_mpi.collectives.network import Network
from sparse_mpi_bench.analysis.recording import RecordedCall

RECORDS = "records must be of one step of all ranks"

Members = tuple[int, ...]  # the ranks of a communicator


class Planned(NamedTuple):
    round: int  # number within the call, from 0; counts that go first have negative rounds
    source: int
    dest: int
    bytes: int
    control: bool = False


def scheduled(calls: Sequence[RecordedCall]) -> list[Planned]:
    """Return the messages of a collective call that member i made as ``calls[i]``, in ascending order of rounds."""
    name, members = calls[0].name, calls[0].members
    if any(call.name != name for call in calls):
        raise ValueError(f"calls must be of one collective, got {', '.join(sorted({call.name for call in calls}))}")
    if len(calls) == 1:
        return []
    size, length, control = len(calls), calls[0].bytes, calls[0].control
    counts: list[Planned] = []  # counts that receivers do not know: 8 bytes down a tree, or 4 gathered from each
    match name:
        case "alltoallv" | "alltoall":
            return _alltoallv(calls)
        case "allreduce":
            messages = _allreduce(length, size, control)
        case "bcast":
            root = members.index(calls[0].root)
            messages, counts = binomial(length, size, root, control), binomial(8, size, root, True)
        case "barrier":
            messages = bruck([0] * size)
        case _:
            messages, counts = bruck([call.bytes for call in calls], control), bruck([4] * size, True)
    rounds = counts[-1].round + 1 if calls[0].announced else 0
    first = [message._replace(round=message.round - rounds) for message in counts if calls[0].announced]
    return [m._replace(source=members[m.source], dest=members[m.dest]) for m in (*first, *messages)]


def _alltoallv(calls: Sequence[RecordedCall]) -> list[Planned]:
    size, members = len(calls), calls[0].members
    return [
        Planned(gap - 1, members[rank], dest, call.to[dest])
        for gap in range(1, size)
        for rank, call in enumerate(calls)
        if (dest := members[(rank + gap) % size]) in call.to
    ]


def _allreduce(length: int, size: int, control: bool) -> list[Planned]:
    gathering = bruck([length * (rank + 1) // size - length * rank // size for rank in range(size)], control)
    rounds = gathering[-1].round + 1
    scattering = [m._replace(round=rounds - 1 - m.round, source=m.dest, dest=m.source) for m in reversed(gathering)]
    return scattering + [m._replace(round=rounds + m.round) for m in gathering]


def bruck(sizes: Sequence[int], control: bool = False) -> list[Planned]:
    """Return the messages of an allgather of blocks of ``sizes`` ``(P,)`` bytes, for any P."""
    size, messages, gap = len(sizes), [], 1
    while gap < size:
        held = min(gap, size - gap)
        for rank in range(size):
            length = sum(sizes[(rank + block) % size] for block in range(held))
            messages.append(Planned(gap.bit_length() - 1, rank, (rank - gap) % size, length, control))
        gap *= 2
    return messages


def binomial(length: int, size: int, root: int, control: bool = False) -> list[Planned]:
    """Return the messages of a broadcast of ``length`` bytes from ``root`` to ``size`` ranks."""
    rounds = (size - 1).bit_length()
    return [
        Planned(number, (above + root) % size, (above + gap + root) % size, length, control)
        for number in range(rounds)
        for gap in [1 << (rounds - 1 - number)]
        for above in range(0, size - gap, 2 * gap)
    ]


class Transfer(NamedTuple):
    """A message on the timeline; times are seconds from the beginning of the step."""

    phase: str
    round: int  # number within the step: all messages that this one waits for are in earlier rounds
    source: int
    dest: int
    bytes: int
    control: bool
    start: float
    end: float


class _Replay:
    """The calls of a step, gone through in an order in which no message is awaited before it is sent."""

    def __init__(self, records: Sequence[Sequence[RecordedCall]], network: Network) -> None:
        self.network = network
        self.pending = [deque(calls) for calls in records]  # calls of every rank that have not been made yet
        self.transfers: list[Transfer] = []
        self.clock = [0.0] * len(records)  # time at which each rank has completed its last message
        self.round = [0] * len(records)  # the next round of each rank
        self.made: Counter[Members] = Counter()  # collective calls of each communicator
        self.posted: dict[int, list[int]] = {}  # messages sent by ranks whose sendrecv has not ended
        self.arriving: defaultdict[tuple[Members, int, int], deque[int]] = defaultdict(deque)  # messages on their way

    def replayed(self) -> list[Transfer]:
        while any(self.pending):
            if not (self.pairs() or self.collectives()):
                self.refuse()
        return self.transfers

    def refuse(self) -> NoReturn:
        for rank, calls in enumerate(self.pending):
            if calls and calls[0].name == "sendrecv":
                source = calls[0].source
                if source is not None and not any(rank in call.to for call in self.pending[source]):
                    raise ValueError(f"{RECORDS}, but rank {rank} waits for a message that rank {source} does not send")
            elif calls:
                members = tuple(calls[0].members)
                lacking = [m for m in members if not any(_meets(call, members) for call in self.pending[m])]
                if lacking:
                    raise ValueError(
                        f"{RECORDS}, but rank {lacking[0]} lacks collective call {self.made[members] + 1} "
                        f"of ranks {', '.join(map(str, members))}"
                    )
        rank, name = next((rank, calls[0].name) for rank, calls in enumerate(self.pending) if calls)
        raise ValueError(f"{RECORDS}, but rank {rank} waits for others in {name}")

    def post(self, call: RecordedCall, source: int, dest: int, length: int, control: bool) -> int:
        start = self.clock[source]
        end = start + self.network.alpha + self.network.beta * length
        self.transfers.append(Transfer(call.phase, self.round[source], source, dest, length, control, start, end))
        return len(self.transfers) - 1

    def exchange(self, rank: int, sends: Sequence[int], receives: Sequence[int]) -> None:
        of_round = [self.transfers[number] for number in (*sends, *receives)]
        self.round[rank] = max([self.round[rank], *(of.round + 1 for of in of_round)])
        self.clock[rank] = max([self.clock[rank], *(of.end for of in of_round)])

    def collectives(self) -> bool:
        moved = False
        for calls in self.pending:
            if calls and self.ready(members := tuple(calls[0].members)):
                self.collective(members)
                moved = True
        return moved

    def ready(self, members: Members) -> bool:
        return all(self.pending[member] and _meets(self.pending[member][0], members) for member in members)

    def collective(self, members: Members) -> None:
        calls = {member: self.pending[member].popleft() for member in members}
        self.made[members] += 1
        begin = max(self.round[member] for member in members)
        self.round = [begin if rank in calls else number for rank, number in enumerate(self.round)]
        # Round after round: all messages of a round are posted before any rank completes it.
        for _, together in groupby(scheduled(list(calls.values())), lambda message: message.round):
            sends: defaultdict[int, list[int]] = defaultdict(list)
            receives: defaultdict[int, list[int]] = defaultdict(list)
            for _, source, dest, length, control in together:
                number = self.post(calls[source], source, dest, length, control)
                sends[source].append(number)
                receives[dest].append(number)
            for rank in sorted({*sends, *receives}):
                self.exchange(rank, sends[rank], receives[rank])

    def pairs(self) -> bool:
        moved = False
        while any([self.pair(rank) for rank in range(len(self.pending))]):
            moved = True
        return moved

    def pair(self, rank: int) -> bool:
        calls, moved = self.pending[rank], False
        if not calls or calls[0].name != "sendrecv":
            return False
        call, members = calls[0], tuple(calls[0].members)
        # Send once.
        if rank not in self.posted:
            self.posted[rank] = [self.post(call, rank, dest, b, call.control) for dest, b in call.to.items()]
            for number in self.posted[rank]:
                self.arriving[members, rank, self.transfers[number].dest].append(number)
            moved = True
        # End, if the message to receive has been sent by now: messages arrive in the order in which they were sent.
        here = deque() if call.source is None else self.arriving[members, call.source, rank]
        if call.source is not None and not here:
            return moved
        self.exchange(rank, self.posted.pop(rank), [here.popleft()] if here else [])
        calls.popleft()
        return True


def _meets(call: RecordedCall, members: Members) -> bool:
    return call.name != "sendrecv" and tuple(call.members) == members


class Trace(NamedTuple):
    algorithm: str
    ranks: int
    transfers: list[Transfer]
    ranks_per_node: int = 1

    @property
    def seconds(self) -> float:
        return max((transfer.end for transfer in self.transfers), default=0.0)

    @property
    def matrix(self) -> np.ndarray:
        """Return the bytes ``(P, P)`` int64 that the rank of the row sends to the rank of the column."""
        sent = np.zeros((self.ranks, self.ranks), np.int64)
        for transfer in self.transfers:
            sent[transfer.source, transfer.dest] += transfer.bytes
        return sent

    @property
    def between(self) -> list[Transfer]:
        """Return the messages from one node to another; ``ranks_per_node`` consecutive ranks are a node."""
        return [t for t in self.transfers if t.source // self.ranks_per_node != t.dest // self.ranks_per_node]


def replay(records: Sequence[Sequence[RecordedCall]], network: Network) -> list[Transfer]:
    """Return the messages of a step of which rank i recorded ``records[i]``. Raises ValueError: calls do not match."""
    return _Replay(records, network).replayed()
