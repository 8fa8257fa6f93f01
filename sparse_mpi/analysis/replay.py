"""Recorded calls -> a timeline of messages on a network of given alpha and beta; what ranks compute takes no time.

A message leaves when its sender is through with the one before, and takes alpha + beta x bytes. A rank is through with
a round when what it sent has left and what it is to receive is there. Ranks send and receive at once.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np

from sparse_mpi.analysis.recording import Call
from sparse_mpi.analysis.schedule import scheduled
from sparse_mpi.costs.model import Network


class Transfer(NamedTuple):
    """A message on the timeline; times in seconds from the beginning of the step."""

    phase: str
    round: int  # of the step: what a message waits for is in earlier rounds
    source: int
    dest: int
    bytes: int
    control: bool
    start: float
    end: float


class Trace(NamedTuple):
    """One step of one algorithm."""

    algorithm: str
    ranks: int
    transfers: list[Transfer]
    ranks_per_node: int = 1

    @property
    def seconds(self) -> float:
        """Until the last message is there."""
        return max((transfer.end for transfer in self.transfers), default=0.0)

    @property
    def matrix(self) -> np.ndarray:
        """``(P, P)`` int64: bytes from the rank of the row to that of the column."""
        sent = np.zeros((self.ranks, self.ranks), np.int64)
        for transfer in self.transfers:
            sent[transfer.source, transfer.dest] += transfer.bytes
        return sent

    @property
    def between(self) -> list[Transfer]:
        """From one node to another; so many consecutive ranks are a node."""
        return [t for t in self.transfers if t.source // self.ranks_per_node != t.dest // self.ranks_per_node]


def replay(records: Sequence[Sequence[Call]], network: Network) -> list[Transfer]:
    """The messages of a step, of which rank i recorded ``records[i]``.

    Raises:
        ValueError: the ranks did not take part in the same collective calls, or wait for messages nobody sent.
    """
    step = _Step(network, [deque(calls) for calls in records])
    while any(step.pending):
        if not (step.pairs() or step.meetings()):
            rank, name = next((rank, calls[0].name) for rank, calls in enumerate(step.pending) if calls)
            raise ValueError(f"records must be of one step of all ranks, but rank {rank} waits for others in {name}")
    return step.transfers


@dataclass
class _Step:
    """A step that is being replayed."""

    network: Network
    pending: list[deque[Call]]  # of every rank
    transfers: list[Transfer] = field(default_factory=list)
    posted: dict[int, list[Transfer]] = field(default_factory=dict)  # by ranks in a sendrecv that has not ended
    arriving: defaultdict[tuple[Sequence[int], int, int], deque[Transfer]] = field(
        default_factory=lambda: defaultdict(deque)
    )  # by communicator, sender and receiver

    def __post_init__(self) -> None:
        self.clock = [0.0] * len(self.pending)
        self.rounds = [0] * len(self.pending)  # that lie behind each rank

    def send(self, phase: str, source: int, dest: int, length: int, control: bool) -> Transfer:
        start = self.clock[source]
        end = start + self.network.alpha + self.network.beta * length
        self.transfers.append(Transfer(phase, self.rounds[source], source, dest, length, control, start, end))
        return self.transfers[-1]

    def settle(self, rank: int, transfers: Sequence[Transfer]) -> None:
        """``rank`` is through with a round that had these messages for it or from it."""
        self.clock[rank] = max([self.clock[rank], *(transfer.end for transfer in transfers)])
        self.rounds[rank] = max([self.rounds[rank], *(transfer.round + 1 for transfer in transfers)])

    def meetings(self) -> bool:
        """Every collective call that all members of its communicator make next; whether there was any."""
        met = False
        for calls in self.pending:
            if calls and self.ready(calls[0].members):
                self.meet(calls[0].members)
                met = True
        return met

    def ready(self, members: Sequence[int]) -> bool:
        """Whether all members are at a collective call of this communicator."""
        heads = [self.pending[member][0] for member in members if self.pending[member]]
        together = [call for call in heads if call.members == members and call.name != "sendrecv"]
        return len(together) == len(members)

    def meet(self, members: Sequence[int]) -> None:
        """The collective call that these make next."""
        calls = {member: self.pending[member].popleft() for member in members}
        begin = max(self.rounds[member] for member in members)
        for member in members:
            self.rounds[member] = begin
        for _, together in groupby(scheduled(list(calls.values())), lambda message: message.round):
            concerning = defaultdict(list)
            for _, source, dest, length, control in together:
                transfer = self.send(calls[source].phase, source, dest, length, control)
                concerning[source].append(transfer)
                concerning[dest].append(transfer)
            for rank, transfers in concerning.items():
                self.settle(rank, transfers)

    def pairs(self) -> bool:
        """All sendrecvs before the next collective calls, in whatever order lets them go on; whether any did."""
        moved = False
        while any([self.pair(rank) for rank in range(len(self.pending))]):
            moved = True
        return moved

    def pair(self, rank: int) -> bool:
        """The next sendrecv of ``rank`` as far as it goes without others: whether it sent or ended."""
        calls, moved = self.pending[rank], False
        if not calls or calls[0].name != "sendrecv":
            return False
        call = calls[0]
        if rank not in self.posted:
            self.posted[rank] = [self.send(call.phase, rank, d, b, call.control) for d, b in call.to.items()]
            for transfer in self.posted[rank]:
                self.arriving[call.members, rank, transfer.dest].append(transfer)
            moved = True
        here = deque() if call.source is None else self.arriving[call.members, call.source, rank]
        if call.source is not None and not here:
            return moved
        self.settle(rank, self.posted.pop(rank) + ([here.popleft()] if here else []))
        calls.popleft()
        return True
