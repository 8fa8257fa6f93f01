"""The magnitude that k of all ranks' reduced entries reach, found by counting: a few small allreduces.

The published Ok-Topk gathers every reduced entry on every rank to find this threshold, and then uses a stale one for
32 steps. Here each round counts how many entries, over all ranks, reach each of a few probes. The first round's probes
crowd around the last step's threshold, so in the steady state it is the only one.
"""

from __future__ import annotations

from math import ceil, log2
from typing import NamedTuple

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm

SLACK = 0.1  # a count between (1 - SLACK) k and k ends the search


class GlobalThreshold(NamedTuple):
    """Entries whose magnitude bits reach ``bits`` are the result; if ``ties``, only some of those equal to it."""

    bits: int
    ties: bool


def probes_per_round(k: int) -> int:
    """Probes that one round counts, 4 bytes each: few for small k, so that counting costs less than sending."""
    return max(8, min(64, k // 16))


def most_rounds(k: int) -> int:
    """Rounds until 63 bits are told apart. Only magnitudes that tie need that many, others one to three."""
    return 1 + ceil(64 / log2(probes_per_round(k) + 1))


def search(values: Array, k: int, guess: int, comm: Comm) -> GlobalThreshold:
    """A threshold that between 0.9 k and k entries reach (all of them, when there are no more than k).

    Args:
        values: ``(m,)`` this rank's reduced entries.
        k: entries wanted over all ranks.
        guess: where to look first, the same on all ranks.
    """
    octave = 1 << np.finfo(values.dtype).nmant
    low, high = 0, 1 << (8 * values.itemsize - 1)
    number = probes_per_round(k)
    probes = _around(guess, octave // 128, number, high)
    while True:
        counts = _count(values, probes, k, comm)
        enough = int(np.searchsorted(-counts, -k))  # the first probe that at most k entries reach
        if enough < len(probes) and (counts[enough] >= (1 - SLACK) * k or probes[enough] == 0):
            return GlobalThreshold(int(probes[enough]), ties=False)
        low = int(probes[enough - 1]) if enough else low
        high = int(probes[enough]) if enough < len(probes) else high
        if high - low == 1:
            return GlobalThreshold(low, ties=True)
        step = -(-(high - low) // (number + 1))
        probes = low + step * np.arange(1, (high - low - 1) // step + 1)


def _around(guess: int, finest: int, number: int, high: int) -> np.ndarray:
    """Probes, ascending: 0, and ``guess`` with others 1, 2, 3, 4, 6, 8, 12 ... times ``finest`` to both sides."""
    steps = [0, 1, 2, 3]
    while len(steps) < number // 2:
        steps.append(2 * steps[-2])
    distances = finest * np.array(steps)
    probes = np.concatenate([[0], guess - distances, guess + distances])
    return np.unique(probes[(probes >= 0) & (probes < high)])


def _count(values: Array, probes: np.ndarray, k: int, comm: Comm) -> np.ndarray:
    """How many entries over all ranks reach each probe: ``(len(probes),)``, descending."""
    counts = kernels.of(values).count(values, probes)
    dtype = np.int32 if k * comm.size < 2**31 else np.int64
    return comm.allreduce(counts.astype(dtype), control=True)
