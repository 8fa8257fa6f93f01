"""Say what each step reduces: always the same k, or what a budget affords."""

from __future__ import annotations

from math import sqrt
from time import perf_counter
from typing import NamedTuple

import numpy as np

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.budget import BudgetTracker, Controller, Decision, Goal, sampled_square
from sparse_mpi.reduction.autotune import depends_on_k
from sparse_mpi.reduction.report import StepReport

ENTRY_BYTES = 4  # of a dense allreduce


class Plan(NamedTuple):
    """What a step reduces; the same on all ranks."""

    k: int
    dense: bool = False  # every entry is summed, by a dense allreduce
    flush: bool = False  # there is no gradient: all that the ranks owe is sent


class FixedK:
    """The policy of a constant k."""

    decision: Decision | None = None

    def __init__(self, k: int) -> None:
        self.plan = Plan(k)  # of the next step


class Budget:
    """The policy of a budget: k follows from what was spent, and a step is dense where that costs no more.

    Args:
        goal: what may be spent.
        size: n, the elements of a gradient.
        segments: the number of parts that are reduced one by one, each with an entry at least.
        ranks: P.
        algorithm: what reduces; None if it will be one that sends less where k is smaller.

    Raises:
        ValueError: not even one entry a segment fits, or the algorithm sends as much whatever k is.
    """

    def __init__(self, goal: Goal, size: int, segments: int, ranks: int, algorithm: Algorithm | None) -> None:
        goal.check_fits(segments)
        if algorithm is not None and not depends_on_k(algorithm):
            raise ValueError(
                f"algorithm must send less where k is smaller with a budget, got {algorithm!r}; take algorithm='elect'"
            )
        # A rank sends (P - 1) / P of the gradient in a reduce-scatter, and as much in an allgather
        dense_bytes = 2 * ENTRY_BYTES * size * (ranks - 1) / ranks
        self.tracker = BudgetTracker(Controller(goal, segments, size, dense_bytes))
        self._square = 0.0  # of the sampled entries of the gradient under way

    @property
    def decision(self) -> Decision | None:
        """Return the decision on the next step; None before the second step is over."""
        return self.tracker.decision

    @property
    def plan(self) -> Plan:
        """Return the plan of the next step."""
        return Plan(self.tracker.controller.k, self.tracker.controller.dense)

    def observe(self, flat: object) -> None:
        """Add a segment of the gradient ``(n,)`` to the estimated norm, which tells how fast gradients change."""
        # Norms matter only to a budget of bytes
        if self.tracker.samples:
            self._square += sampled_square(flat)

    def measured(self, began: float, report: StepReport) -> np.ndarray | None:
        """Return this rank's words on the step that ends, for `agreed_on`; None if it did not see its beginning.

        Args:
            began: when the whole gradient was there, in `time.perf_counter` seconds.
            report: of the step.
        """
        sent, norm, self._square = report.traffic.sent + report.traffic.control, sqrt(self._square), 0.0
        return self.tracker.measured(perf_counter() - began, report.exchange_seconds, sent, norm)

    def skip(self) -> None:
        """Leave a step that was not reduced out of account."""
        self._square = 0.0
        # The clock starts anew: the next step must not be charged for the time of this one
        self.tracker.pause()


Policy = FixedK | Budget
