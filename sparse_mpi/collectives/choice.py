"""Choose an algorithm by its expected time on a network."""

from __future__ import annotations

from typing import NamedTuple

from sparse_mpi.algorithms.quantiles import Pool
from sparse_mpi.collectives.algorithms import DIRECT
from sparse_mpi.collectives.messages import Format
from sparse_mpi.collectives.network import Network
from sparse_mpi.collectives.ownership import degrees, distinct
from sparse_mpi.comm.base import rounds

USUAL = Network.of(10, 5)  # the default network: 10 Gbit/s, 5 us
INLINE = "inline"  # no algorithm: the entries travelled with the arguments
FEW = 1 << 18  # entries of all ranks that never take too much memory
MERGED = 15e-9  # seconds for an entry that is merged with others (one core of an EPYC, 10^5 entries of 8 ranks)


class Choice(NamedTuple):
    """The chosen algorithm, and why."""

    algorithm: str  #: its name
    seconds: dict[str, float]  #: expected time of each algorithm, for messages and merging
    entries: int  #: entries of all ranks together
    expected: float  #: entries of the result, if the keys of each rank are drawn from their range at random

    def __str__(self) -> str:
        costs = ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in self.seconds.items())
        return f"{self.algorithm}: {self.entries:,} entries, about {self.expected:,.0f} distinct; {costs}"


def inlined(pool: Pool) -> Choice:
    entries = int(pool.counts.sum())
    return Choice(INLINE, {INLINE: MERGED * entries}, entries, distinct(pool.counts.tolist(), pool.span))


def choose(pool: Pool, form: Format, network: Network) -> Choice:
    """Return the algorithm of least expected time, from facts alike on all ranks."""
    counts, ranks = pool.counts.tolist(), len(pool.counts)
    everything, most, mean = sum(counts), max(counts), sum(counts) / ranks
    depth, core = rounds(ranks), 1 << (ranks.bit_length() - 1)  # a power of two
    alpha, whole = network.alpha, distinct(counts, pool.span)

    def sent(entries: float) -> float:
        return network.beta * entries * form.bytes_each(entries)

    def union(sets: int) -> float:
        return distinct([mean] * sets, pool.span)

    collected = sent(whole) * (ranks - 1) / ranks
    back = ranks - 1 if ranks <= DIRECT else 2 * depth
    seconds = {
        "split": (ranks - 1 + back) * alpha + sent(most) * (ranks - 1) / ranks + collected + MERGED * mean,
        "gather": depth * alpha + sent(mean) * (ranks - 1) + MERGED * everything,
    }
    # A stage of a butterfly sends all but one part of a rank's entries, and merges as many entries as it had.
    butterfly, together = collected, 1
    for degree in degrees(pool, form.bytes_each):
        part = union(together) / together / degree
        butterfly += (degree - 1) * (2 * alpha + sent(part)) + MERGED * degree * part
        together *= degree
    seconds["butterfly"] = butterfly
    # Ranks beyond a power of two send their entries before the first round, and get the result after the last.
    groups = [union(1 << stage) for stage in range(core.bit_length() - 1)]
    outside = 2 * alpha + sent(most) + sent(whole) + 2 * MERGED * most if core < ranks else 0.0
    seconds["doubling"] = sum(alpha + sent(group) + 2 * MERGED * group for group in groups) + outside
    # Where all entries take much memory, leave out algorithms that hold more of them than they send and receive.
    if everything > max(FEW, 2 * (most + whole)):
        del seconds["gather"], seconds["doubling"]
    return Choice(min(seconds, key=seconds.__getitem__), seconds, everything, whole)
