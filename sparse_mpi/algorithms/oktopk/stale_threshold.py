"""The published rule for Ok-Topk's global threshold (Li & Hoefler, PPoPP'22): exact now and then, stale in between.

The step that makes it exact gathers every reduced entry on every rank, a volume that grows with the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.algorithms.base import rounds
from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm import Comm
from sparse_mpi.comm.renumbered import Rotated
from sparse_mpi.kernels.base import bits_type, magnitude_bits

NUDGE = 1.008  # the artifact's correction while counts are outside [2k/3, 4k/3]


@dataclass(frozen=True)
class StaleThreshold:
    """What is carried from step to step."""

    bits: int = 0  # magnitude bits of the threshold
    age: int = 0  # steps since it was exact
    k: int = 0  # that it was exact for


@dataclass(frozen=True)
class Stale:
    """The rule: k entries every ``period`` steps, ties aside, and in between as many as there are, none included."""

    period: int = 32

    def init(self) -> StaleThreshold:
        """No threshold yet."""
        return StaleThreshold()

    def cut(
        self, values: Array, k: int, state: StaleThreshold, comm: Comm | Rotated
    ) -> tuple[Array, np.ndarray, StaleThreshold]:
        """See `Counted.cut`; all entries that tie at the threshold are in the result."""
        bits, age = state.bits, state.age
        if age % self.period == 0 or k != state.k:
            everything, _ = comm.allgatherv(values)
            bits, age = kernels.kth_magnitude(everything, min(k, len(everything)), most=k), 0
        keep = magnitude_bits(values) >= bits
        mine = np.array(int(namespace(values).count_nonzero(keep)), np.int64)
        counts = comm.allgather(mine, control=True)
        threshold = np.array(bits, bits_type(values)).view(values.dtype)
        if 3 * counts.sum() < 2 * k:
            threshold = threshold / NUDGE
        elif 3 * counts.sum() > 4 * k:
            threshold = threshold * NUDGE
        return keep, counts, StaleThreshold(int(magnitude_bits(threshold.astype(values.dtype))), age + 1, k)

    def bound(self, everything: float, k: int, ranks: int) -> tuple[float, float, int, float]:
        """See `Counted.bound`."""
        return everything, everything * (ranks - 1), 3 * rounds(ranks), 12 * (ranks - 1)
