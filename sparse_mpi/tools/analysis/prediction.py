"""Predict the traffic of a large gradient on many ranks from that of a short one, which is counted.

Gradients of n elements of 1024 ranks do not fit one process. But at a given density an algorithm sends pairs, whose
number grows linearly with k, and messages and control, whose numbers depend on P alone (except for a round of the
threshold search now and then). So traffic is counted for a gradient that is short, yet long enough for every rank to
have several entries for every other, and its payload is multiplied by the ratio of the lengths. Where even that is too
much to run, the algorithm's formula takes its place, which is an upper bound.
"""

from __future__ import annotations

from typing import NamedTuple

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.comm import Traffic
from sparse_mpi.tools.analysis.volume import WORD, Volume, formula

K_PER_RANK = 16  # entries that a rank selects for each other one, on average, where traffic is counted
MIN_K, MIN_N = 4096, 1 << 17  # below these, rounding and short indices would show


class Predicted(NamedTuple):
    """The predicted traffic of one algorithm on one number of ranks."""

    algorithm: str
    ranks: int
    traffic: Traffic  # of the rank that sends most
    counted: bool  # if not, it is the bound of the formula


def short_length(n: int, density: float, ranks: int) -> int:
    """Return the length of the gradient to count with in place of one of n elements."""
    return min(n, max(round(max(K_PER_RANK * ranks, MIN_K) / density), MIN_N))


def scaled(volume: Volume, n: int) -> Traffic:
    """Scale the traffic of the rank that sends most in a step to n elements at the same density."""
    ratio, counted = n / volume.n, volume.slowest
    return Traffic(round(counted.sent * ratio), round(counted.received * ratio), counted.messages, counted.control)


def allowed(algorithm: Algorithm, n: int, k: int, ranks: int) -> Traffic:
    """Return the traffic that the formula allows one rank in a step."""
    words, control, messages = formula(algorithm, n, k, ranks)
    return Traffic(round(words * WORD), round(words * WORD), round(messages), round(control))
