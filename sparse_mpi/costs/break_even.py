"""Which of two ways to reduce is faster on which network: a step as a time to compute and what it sends.

A step takes ``compute + alpha * messages + 8 * bytes / bandwidth`` seconds: the alpha-beta model of `costs`, where
``alpha`` is the latency of a message in seconds and ``bandwidth`` that of a rank in bits a second. Two steps are
equally long at

    bandwidth = 8 * (bytes_a - bytes_b) / (compute_b - compute_a + alpha * (messages_b - messages_a))

the *break-even bandwidth*: below it the one that sends less is faster, above it the one that computes less.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

FAIR = 1.3  # times the ring bound: what good libraries' dense sums take at most where the network is what limits them


@dataclass(frozen=True)
class Cost:
    """What a step costs a rank, whatever the network."""

    compute: float  # seconds
    messages: float
    bytes: float  # of the direction that carries more, control included

    def seconds(self, bandwidth: float, alpha: float) -> float:
        """The length of a step on a network of so many bits a second and seconds a message."""
        return self.compute + alpha * self.messages + 8 * self.bytes / bandwidth


def break_even(cost: Cost, baseline: Cost, alpha: float) -> float:
    """The bandwidth, bits a second, up to which ``cost`` is not slower than ``baseline``.

    Infinity where it is faster on any network; 0 where there is no such bandwidth: it sends no less. Then it is slower
    everywhere, or, if it computes less, on slow networks.
    """
    saved = 8 * (baseline.bytes - cost.bytes)
    spent = cost.compute - baseline.compute + alpha * (cost.messages - baseline.messages)
    if spent <= 0:
        return inf if saved >= 0 else 0.0
    return max(saved / spent, 0.0)


def ring_bound(nbytes: int, ranks: int, bandwidth: float) -> float:
    """Seconds that a dense allreduce of so many bytes takes at least: 2(P-1)/P of them through every rank's link.

    A dense sum that takes more than `FAIR` times as long is no fair baseline, or not the network is what limits it.
    """
    return 2 * (ranks - 1) / ranks * 8 * nbytes / bandwidth
