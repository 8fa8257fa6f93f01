"""Counted traffic, scaled to a large gradient and priced on a network.

A gradient of n elements on 1024 ranks does not fit one process. But at one density, what an algorithm sends is made of
pairs, whose number grows linearly with k, and of messages and control, whose numbers depend on P alone (but for a
round of the threshold search now and then). So traffic is counted for a gradient that is short, yet long enough for
every rank to have several entries for every other, and its payload is multiplied by the ratio of the lengths. Where
even that is too much to run, the algorithm's formula stands in: an upper bound.
"""

from __future__ import annotations

from typing import NamedTuple

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.analysis.volume import WORD, Volume, formula
from sparse_mpi.comm import Traffic

K_PER_RANK = 16  # entries a rank selects for each other, on average, where traffic is counted
MIN_K, MIN_N = 4096, 1 << 17  # below these, rounding and short indices would show


class Predicted(NamedTuple):
    """Traffic of one algorithm on one number of ranks."""

    algorithm: str
    ranks: int
    traffic: Traffic  # of the rank that sends most
    counted: bool  # or by the formula


def short_length(n: int, density: float, ranks: int) -> int:
    """Elements of the gradient to count with in place of one of n."""
    return min(n, max(round(max(K_PER_RANK * ranks, MIN_K) / density), MIN_N))


def scaled(volume: Volume, n: int) -> Traffic:
    """A step's traffic of the rank that sends most, for n elements at the same density."""
    ratio, counted = n / volume.n, volume.slowest
    return Traffic(round(counted.sent * ratio), round(counted.received * ratio), counted.messages, counted.control)


def allowed(algorithm: Algorithm, n: int, k: int, ranks: int) -> Traffic:
    """What the formula allows a rank."""
    words, control, messages = formula(algorithm, n, k, ranks)
    return Traffic(round(words * WORD), round(words * WORD), round(messages), round(control))
