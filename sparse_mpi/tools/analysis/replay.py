"""Replay recorded calls on a network of given alpha and beta: a timeline of messages, in which computing takes no time.

A message leaves when the sender has completed its round before, and takes alpha + beta x bytes. A rank has completed a
round when all that it sent in it has left and all that it is to receive has arrived. Ranks send and receive at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sparse_mpi.network.model import Network
from sparse_mpi.network.simulator import simulate
from sparse_mpi.tools.analysis.program import compiled
from sparse_mpi.tools.analysis.recording import Call


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
    program = compiled(records, textbook=True)
    spans = simulate(program, network).messages
    return [
        Transfer(m.phase, m.round, m.source, m.dest, int(m.bytes), m.control, start, end)
        for m, (start, end) in zip(program.messages, spans, strict=True)
    ]
