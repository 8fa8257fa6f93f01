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
from sparse_mpi.costs import Network


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


def replay(records: Sequence[Sequence[Call]], network: Network) -> list[Transfer]:
    """The messages of a step, of which rank i recorded ``records[i]``.

    Raises:
        ValueError: the ranks did not take part in the same collective calls, or wait for messages nobody sent.
    """
    step = _Step(network, [deque(calls) for calls in records])
    while any(step.pending):
        step.pairs()
        if waiting := [rank for rank, calls in enumerate(step.pending) if calls and calls[0].name == "sendrecv"]:
            raise ValueError(f"records must be of one step of all ranks, but rank {waiting[0]} waits for a message")
        if any(step.pending):
            step.meet()
    return step.transfers


@dataclass
class _Step:
    """A step that is being replayed."""

    network: Network
    pending: list[deque[Call]]  # of every rank
    transfers: list[Transfer] = field(default_factory=list)

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

    def meet(self) -> None:
        """The collective call that all ranks make next."""
        if not all(self.pending):
            raise ValueError("records must be of one step of all ranks, but some end before others")
        calls = [calls.popleft() for calls in self.pending]
        self.rounds = [max(self.rounds)] * len(calls)
        for _, together in groupby(scheduled(calls), lambda message: message.round):
            concerning = defaultdict(list)
            for _, source, dest, length, control in together:
                transfer = self.send(calls[source].phase, source, dest, length, control)
                concerning[source].append(transfer)
                concerning[dest].append(transfer)
            for rank, transfers in concerning.items():
                self.settle(rank, transfers)

    def pairs(self) -> None:
        """All sendrecvs before the next collective call, in whatever order lets them go on."""
        arriving: dict[tuple[int, int | None], deque[Transfer]] = defaultdict(deque)
        posted: dict[int, list[Transfer]] = {}
        moved = True
        while moved:
            moved = False
            for rank, calls in enumerate(self.pending):
                while calls and calls[0].name == "sendrecv":
                    call = calls[0]
                    if rank not in posted:
                        posted[rank] = [self.send(call.phase, rank, d, b, call.control) for d, b in call.to.items()]
                        for transfer in posted[rank]:
                            arriving[rank, transfer.dest].append(transfer)
                        moved = True
                    here = arriving[call.source, rank] if call.source is not None else deque()
                    if call.source is not None and not here:
                        break
                    self.settle(rank, posted.pop(rank) + ([here.popleft()] if here else []))
                    calls.popleft()
                    moved = True
