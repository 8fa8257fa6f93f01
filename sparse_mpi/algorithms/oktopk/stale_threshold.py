"""The published rule for Ok-Topk's global threshold (Li & Hoefler, PPoPP'22): exact now and then, stale in between.

The step that makes it exact gathers every reduced entry on every rank, a volume that grows with the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.algorithms.base import rounds
from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm import Comm
from sparse_mpi.kernels.base import magnitude_bits
from sparse_mpi.select.stale import StaleRule

NUDGE = 1.008  # the published program's correction while counts are outside [2k/3, 4k/3]
MOST = Fraction(4, 3)  # times k


@dataclass(frozen=True)
class StaleThreshold:
    """The state of the rule from step to step, equal on all ranks."""

    bits: int = 0  # magnitude bits of the threshold
    age: int = 0  # steps since it was exact
    k: int = 0  # the number of entries for which it was exact


@dataclass(frozen=True)
class Stale:
    """The published rule: k entries every ``period`` steps, ties aside, and in between as many as reach the threshold.

    That may be none at all.
    """

    period: int = 32

    def init(self) -> StaleThreshold:
        """Return the state before the first step, in which a refresh is due."""
        return StaleThreshold()

    def cut(
        self, values: Array, k: int, state: StaleThreshold, comm: Comm, piggyback: int = 0
    ) -> tuple[Array, np.ndarray, np.ndarray, StaleThreshold]:
        """Decide which of this rank's reduced entries are in the result: all that reach the threshold, ties included.

        See `Counted.cut` for arguments and results.
        """
        rule = StaleRule(self.period, NUDGE, MOST)
        bits, age = state.bits, state.age

        # Every now and then all reduced entries are gathered on all ranks, for the exact k-th magnitude.
        if rule.refresh_due(age, k, state.k):
            everything, _ = comm.allgatherv(values)
            wanted, age = min(k, len(everything)), 0
            bits = kernels.kth_magnitude(everything, wanted, most=k) if wanted else 0

        # In between the last threshold is reused; how many entries of each rank reach it, all ranks must know.
        mask = magnitude_bits(values) >= bits
        row = np.array([int(namespace(values).count_nonzero(mask)), piggyback], np.int64)
        counts, piggybacked = comm.allgather(row, control=True).T
        bits = rule.nudged(bits, int(counts.sum()), k, values.dtype)
        return mask, counts, piggybacked, StaleThreshold(bits, age + 1, k)

    def bound(self, everything: float, k: int, ranks: int) -> tuple[float, float, int, float]:
        """Return the most that a step of this rule may cost one rank; see `Counted.bound` for arguments and results.

        All reduced entries may reach a stale threshold, and the step that makes it exact gathers them besides.
        """
        return everything, everything * (ranks - 1), 3 * rounds(ranks), 20 * (ranks - 1)
