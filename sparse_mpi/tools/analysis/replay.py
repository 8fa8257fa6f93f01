"""Replay recorded calls on a network of given alpha and beta: a timeline of messages, in which computing takes no time.

A message leaves when the sender has completed its round before, and takes alpha + beta x bytes. A rank has completed a
round when all that it sent in it has left and all that it is to receive has arrived. Ranks send and receive at once.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np

from sparse_mpi.network.model import Network
from sparse_mpi.tools.analysis.recording import Call
from sparse_mpi.tools.analysis.schedule import scheduled


class Transfer(NamedTuple):
    """A message on the timeline; times are seconds from the beginning of the step."""

    phase: str
    round: int  # within the step: all messages that this one waits for are in earlier rounds
    source: int
    dest: int
    bytes: int
    control: bool
    start: float
    end: float


class Trace(NamedTuple):
    """The messages of one step of one algorithm."""

    algorithm: str
    ranks: int
    transfers: list[Transfer]
    ranks_per_node: int = 1

    @property
    def seconds(self) -> float:
        """Return the seconds until the last message has arrived."""
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


def replay(records: Sequence[Sequence[Call]], network: Network) -> list[Transfer]:
    """Return the messages of a step of which rank i recorded ``records[i]``.

    Raises:
        ValueError: the ranks did not take part in the same collective calls, or wait for messages that nobody sent.
    """
    step = _Step(network, [deque(calls) for calls in records])
    while any(step.pending):
        if not (step.pairs() or step.collectives()):
            rank, name = next((rank, calls[0].name) for rank, calls in enumerate(step.pending) if calls)
            raise ValueError(f"records must be of one step of all ranks, but rank {rank} waits for others in {name}")
    return step.transfers


@dataclass
class _Step:
    """A step that is being replayed."""

    network: Network
    pending: list[deque[Call]]  # calls of every rank that are not replayed yet
    transfers: list[Transfer] = field(default_factory=list)
    posted: dict[int, list[Transfer]] = field(
        default_factory=dict
    )  # messages sent by ranks whose sendrecv has not ended
    arriving: defaultdict[tuple[Sequence[int], int, int], deque[Transfer]] = field(
        default_factory=lambda: defaultdict(deque)
    )  # messages not received yet, by communicator, sender and receiver

    def __post_init__(self) -> None:
        self.clock = [0.0] * len(self.pending)  # seconds at which each rank has completed its rounds so far
        self.rounds = [0] * len(self.pending)  # number of the next round of each rank

    def send(self, phase: str, source: int, dest: int, length: int, control: bool) -> Transfer:
        """Append a message that leaves now, by the clock of its sender."""
        start = self.clock[source]
        end = start + self.network.alpha + self.network.beta * length
        self.transfers.append(Transfer(phase, self.rounds[source], source, dest, length, control, start, end))
        return self.transfers[-1]

    def complete(self, rank: int, transfers: Sequence[Transfer]) -> None:
        """Complete a round of ``rank`` that had these messages from it or for it."""
        self.clock[rank] = max([self.clock[rank], *(transfer.end for transfer in transfers)])
        self.rounds[rank] = max([self.rounds[rank], *(transfer.round + 1 for transfer in transfers)])

    def collectives(self) -> bool:
        """Replay each collective call that all members of its communicator make next; return if there were any."""
        replayed = False
        for calls in self.pending:
            if calls and self.ready(calls[0].members):
                self.collective(calls[0].members)
                replayed = True
        return replayed

    def ready(self, members: Sequence[int]) -> bool:
        """Return whether all members make a collective call of this communicator next."""
        heads = [self.pending[member][0] for member in members if self.pending[member]]
        together = [call for call in heads if call.members == members and call.name != "sendrecv"]
        return len(together) == len(members)

    def collective(self, members: Sequence[int]) -> None:
        """Replay the collective call that these members make next."""
        calls = {member: self.pending[member].popleft() for member in members}
        begin = max(self.rounds[member] for member in members)
        for member in members:
            self.rounds[member] = begin
        # Round after round: all messages of a round leave before any rank completes it.
        for _, together in groupby(scheduled(list(calls.values())), lambda message: message.round):
            concerning = defaultdict(list)
            for _, source, dest, length, control in together:
                transfer = self.send(calls[source].phase, source, dest, length, control)
                concerning[source].append(transfer)
                concerning[dest].append(transfer)
            for rank, transfers in concerning.items():
                self.complete(rank, transfers)

    def pairs(self) -> bool:
        """Replay all sendrecvs before the next collective calls, in any order that works; return if any went on."""
        moved = False
        while any([self.pair(rank) for rank in range(len(self.pending))]):
            moved = True
        return moved

    def pair(self, rank: int) -> bool:
        """Replay the next sendrecv of ``rank`` as far as possible; return whether it sent or ended now."""
        calls, moved = self.pending[rank], False
        if not calls or calls[0].name != "sendrecv":
            return False
        call = calls[0]
        # Send once.
        if rank not in self.posted:
            self.posted[rank] = [self.send(call.phase, rank, d, b, call.control) for d, b in call.to.items()]
            for transfer in self.posted[rank]:
                self.arriving[call.members, rank, transfer.dest].append(transfer)
            moved = True
        # End, if the message to receive has been sent by now.
        here = deque() if call.source is None else self.arriving[call.members, call.source, rank]
        if call.source is not None and not here:
            return moved
        self.complete(rank, self.posted.pop(rank) + ([here.popleft()] if here else []))
        calls.popleft()
        return True
