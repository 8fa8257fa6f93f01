"""Count what an algorithm of `sparse_mpi.allreduce` sends on the P ranks of a `World`."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

from sparse_mpi import collectives
from sparse_mpi.collectives.choice import Choice
from sparse_mpi.comm import Comm, Traffic
from sparse_mpi.comm.world import World
from sparse_mpi.tools.bench.sparse_cases import Case

PAIR, VALUE = 16, 8  # bytes of a key and its value, and of a value
HELD = 3  # bytes that a rank holds for each that it got: entries unpacked, samples sorted


@dataclass(frozen=True)
class KeyedVolume:
    """The counted traffic of one rank in a sum of float64 values: bytes, and messages."""

    case: str
    algorithm: str
    chosen: str  # what ``auto`` took; the algorithm's name otherwise
    ranks: int
    n: int
    entries: int  # of all ranks
    result: int
    sent: float  # payload, mean over ranks
    most: int  # payload of the rank that sends most
    control: int  # at most: what is told before
    messages: int  # at most, those of control included
    received: int  # payload, at most

    @property
    def dense(self) -> float:
        """Return what a rank sends of a dense buffer of n values in a ring: the least."""
        return 2 * VALUE * self.n * (self.ranks - 1) / self.ranks

    @property
    def pairs(self) -> float:
        """Return what a rank sends, on average, to give all pairs to all: in pickled `allgather` and in gloo's sum."""
        return PAIR * self.entries * (self.ranks - 1) / self.ranks

    def gigabytes(self, ranks: int) -> float:
        """Estimate the memory that `count` needs for more ranks, in GB, if what each gets grows as their square."""
        return 1e-9 * HELD * ranks * (self.received + self.control) * (ranks / self.ranks) ** 2


def count(name: str, case: Case, algorithm: str, ranks: int, n: int, entries: int) -> KeyedVolume:
    """Sum up what the ranks have in a case, and count.

    Args:
        name: of the case, for the result.
        case: makes the keys of a rank.
        algorithm: as `sparse_mpi.allreduce` takes it.
        ranks: P.
        n: keys that there are.
        entries: that a rank has, at most.

    Raises:
        ValueError: the algorithm refuses such data.
    """
    chosen: list[Choice] = []

    def run(comm: Comm) -> tuple[Traffic, int, int]:
        keys = case(comm.rank, ranks, n, entries)
        before = comm.traffic.copy()
        tell = chosen.append if comm.rank == 0 else None
        found, _ = collectives.allreduce((keys, np.ones(len(keys))), comm=comm, algorithm=algorithm, tell=tell)
        return comm.traffic - before, len(keys), len(found)

    traffic, held, results = zip(*World(ranks).run(run), strict=True)
    return KeyedVolume(
        name,
        algorithm,
        chosen[0].algorithm if chosen else algorithm,
        ranks,
        n,
        entries=sum(held),
        result=results[0],
        sent=statistics.mean(t.sent for t in traffic),
        most=max(t.sent for t in traffic),
        control=max(t.control for t in traffic),
        messages=max(t.messages for t in traffic),
        received=max(t.received for t in traffic),
    )
