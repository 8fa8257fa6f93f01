"""Compare two ways to reduce, each given by its computing time and its bytes: which is faster where?

A step takes ``compute + alpha * messages + 8 * bytes / bandwidth`` seconds: the alpha-beta model of `costs`, where
``alpha`` is the latency of a message in seconds and ``bandwidth`` a rank's in bits a second. Two steps are equally long
at

    bandwidth = 8 * (bytes_a - bytes_b) / (compute_b - compute_a + alpha * (messages_b - messages_a))

the *break-even bandwidth*: below it the step that sends less is faster, above it the step that computes less.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

FAIR = 1.3  # times the ring bound: the most that good libraries' dense sums take where the network limits them


@dataclass(frozen=True)
class Cost:
    """The costs of a step for one rank that do not depend on the network."""

    compute: float  # seconds
    messages: float
    bytes: float  # the direction that carries more, control included


def break_even(cost: Cost, baseline: Cost, alpha: float) -> float:
    """Return the bits a second up to which ``cost`` is not slower: infinite if on any network, 0 if none is saved."""
    saved = 8 * (baseline.bytes - cost.bytes)
    spent = cost.compute - baseline.compute + alpha * (cost.messages - baseline.messages)
    if spent <= 0:
        return inf if saved >= 0 else 0.0
    return max(saved / spent, 0.0)


def ring_bound(nbytes: int, ranks: int, bandwidth: float) -> float:
    """Return the least seconds of a dense allreduce: 2(P-1)/P of its ``nbytes`` pass every rank's link."""
    return 2 * (ranks - 1) / ranks * 8 * nbytes / bandwidth
