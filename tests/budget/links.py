"""Simulated links: steps that compute, then send what a controller says over a link whose rate may change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparse_mpi.budget import Controller, Decision, Goal, Observation

GBIT, MBIT = 125e6, 125e3  # bytes a second
SIZE = 10_000_000  # entries of the gradient
DENSE = 1.5 * 4 * SIZE  # bytes that one of 4 ranks sends in a dense allreduce


class Step(NamedTuple):
    """A step that was simulated."""

    began: float
    seconds: float
    sent: int
    decision: Decision


@dataclass
class Link:
    """A rank's link.

    Args:
        rate: bytes a second at a time in seconds.
        compute: seconds of a step beside its exchange.
        latency: seconds of an exchange of nothing.
        noise: relative standard deviation of what each part takes.
        hidden: share of computing behind which the exchange can hide.
        pair: bytes sent for each entry.
    """

    rate: Callable[[float], float]
    compute: float = 0.1
    latency: float = 0.002
    noise: float = 0.0
    hidden: float = 0.0
    pair: float = 12.0

    def run(self, controller: Controller, seconds: float, norm: Callable[[float], float] = lambda now: 1.0, seed=0):
        """Return the steps of a run of so many seconds."""
        random, now, sent, steps = np.random.default_rng(seed), 0.0, 0, []
        while now < seconds:
            size = round(DENSE if controller.dense else 200 + self.pair * controller.k)
            jitter = np.maximum(0.2, 1 + self.noise * random.standard_normal(2))
            exchange = (self.latency + self._carried(now, size)) * jitter[0]
            rest = self.compute * jitter[1]
            exposed = max(0.0, exchange - self.hidden * rest)
            sent += size
            seen = Observation(*(round(1e9 * part) for part in (rest, exposed, exchange)), sent, norm(now))
            steps.append(Step(now, rest + exposed, size, controller.observe(seen)))
            now += rest + exposed
        return steps

    def _carried(self, now: float, size: float) -> float:
        """Return the seconds that it takes to carry ``size`` bytes from ``now`` on, while the rate may change."""
        began, slice_ = now, 0.01
        while size > 0:
            rate = self.rate(now)
            if rate * slice_ >= size:
                return now - began + size / rate
            size, now = size - rate * slice_, now + slice_
        return now - began


def controller(floor: int = 4, **goal) -> Controller:
    return Controller(Goal(**goal), floor, SIZE, DENSE)


def alternating(now: float) -> float:
    """1 Gbit/s and 50 Mbit/s, 30 seconds each."""
    return GBIT if now % 60 < 30 else 50 * MBIT
