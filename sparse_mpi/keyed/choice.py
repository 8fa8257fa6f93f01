"""Choose an algorithm for entries by what they are expected to cost on a network."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparse_mpi.algorithms.base import rounds
from sparse_mpi.comm.quantiles import Pool
from sparse_mpi.costs.model import Network
from sparse_mpi.keyed.messages import Format

USUAL = Network.of(10, 5)  # where nobody says on which network: 10 Gbit/s, 5 us
MERGED = 30e-9  # seconds for an entry that is merged with others (one core of an EPYC, 10^5 entries of each of 8 ranks)


class Choice(NamedTuple):
    """What was chosen, and why."""

    algorithm: str
    seconds: dict[str, float]  # that each algorithm should take, for messages and merging
    entries: int  # of all ranks together
    expected: float  # entries of the result, if the keys of each rank are drawn from their range at random

    def __str__(self) -> str:
        """Return a line for people."""
        costs = ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in self.seconds.items())
        return f"{self.algorithm}: {self.entries:,} entries, about {self.expected:,.0f} distinct; {costs}"


def choose(pool: Pool, form: Format, network: Network) -> Choice:
    """Return the algorithm that should take least time; the same on all ranks, for it knows no more than all do."""
    counts, ranks = pool.counts.astype(np.float64), len(pool.counts)
    depth, whole = rounds(ranks), _distinct(counts, pool.span)

    def sent(entries: float) -> float:
        return network.beta * entries * form.bytes_each(entries)

    everything = counts.sum()
    splitting = (ranks - 1 + depth) * network.alpha + (sent(counts.max()) + sent(whole)) * (ranks - 1) / ranks
    gathering = depth * network.alpha + sum(map(sent, counts)) - sent(counts.min())
    seconds = {
        "split": splitting + MERGED * everything / ranks,
        "gather": gathering + MERGED * everything,
    }
    # Ranks beyond a power of two hand in theirs before the first round, and get the result after the last.
    core = 1 << (ranks.bit_length() - 1)
    groups = [_distinct(np.full(1 << round, counts.mean()), pool.span) for round in range(core.bit_length() - 1)]
    outside = 2 * network.alpha + sent(counts.max()) + sent(whole) if core < ranks else 0.0
    doubling = sum(network.alpha + sent(group) + MERGED * 2 * group for group in groups)
    seconds["doubling"] = doubling + outside + (MERGED * 2 * counts.max() if core < ranks else 0.0)
    return Choice(min(seconds, key=seconds.__getitem__), seconds, int(counts.sum()), whole)


def _distinct(counts: np.ndarray, span: int) -> float:
    """Return how many distinct keys are expected among sets of so many, each drawn from ``span`` keys at random."""
    shares = np.minimum(counts / span, 1 - 1e-16)
    return float(min(-np.expm1(np.log1p(-shares).sum()) * span, counts.sum()))
