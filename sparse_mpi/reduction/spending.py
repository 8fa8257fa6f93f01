"""Let a budget set k of the steps of a `SparseAllreduce`: `Spending`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from math import sqrt
from time import perf_counter
from typing import Any

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.budget import Controller, Decision, Goal, Keeper, agreed_on
from sparse_mpi.budget.keeper import NormSample
from sparse_mpi.comm import Comm
from sparse_mpi.reduction.autotune import depends_on_k as follows_k
from sparse_mpi.reduction.report import StepReport
from sparse_mpi.sparse import Layout

ENTRY_BYTES = 4  # of a dense allreduce


def make_keeper(goal: Goal, segments: int, size: int, ranks: int, algorithm: Algorithm | None) -> Keeper:
    """Return what keeps to ``goal`` in steps of ``size`` entries in so many segments.

    Raises:
        ValueError: not even one entry a segment fits, or the algorithm sends as much whatever k is.
    """
    goal.check_fits(segments)
    if algorithm is not None and not follows_k(algorithm):
        raise ValueError(
            f"algorithm must send less where k is smaller with a budget, got {algorithm!r}; take algorithm='elect'"
        )
    return Keeper(Controller(goal, segments, size, 2 * ENTRY_BYTES * size * (ranks - 1) / ranks))


class Spending(ABC):
    """The part of `SparseAllreduce` that keeps to a budget, if there is one."""

    comm: Comm
    in_place: bool
    layout: Layout
    report: StepReport | None
    _keeper: Keeper | None
    _dense: Spending | None = None  # shares the residual, and takes the steps in which dense costs no more

    @property
    def decision(self) -> Decision | None:
        """Return how the budget has decided on the next step; None without one, or before the second step is over."""
        return None if self._keeper is None else self._keeper.decision

    def _keep(self, goal: Goal | None, algorithm: Algorithm | None) -> None:
        """Begin to keep to ``goal``, if there is one; raise ValueError where that is not possible."""
        self._keeper = None
        if goal is not None:
            self._keeper = make_keeper(goal, 1, self.layout.size, self.comm.size, algorithm)
        self._sample = NormSample(self.in_place) if self._keeper and self._keeper.samples else None

    def _spend(self, gradient: Any, k: int | None, density: float | None, check: bool) -> Any:
        """Take a step and, with a budget, decide on the next one. Collective; arguments as for `step`."""
        keeper = self._keeper
        if keeper is None:
            return self._step(gradient, k, density, check)
        began, square = perf_counter(), self._square(gradient)
        if keeper.controller.dense and self._dense is None:
            self._dense = self.sibling("dense")
        mine = k is not None or density is not None  # which are refused beside a budget
        taking = self._dense if self._dense and keeper.controller.dense and not mine else self
        if taking is not self:
            self.forget()
        result = taking._step(gradient, k, density, check)
        self.report = report = taking.report
        assert report is not None, "a step has a report"
        sent = report.traffic.sent + report.traffic.control
        words = keeper.measured(perf_counter() - began, report.exchange_seconds, sent, sqrt(square))
        if words is not None:
            keeper.decide(agreed_on(words, self.comm))
        if self._sample:
            self._sample.stepped(gradient)
        return result

    def _square(self, gradient: Any) -> float:
        """Return a sum of squares of ``gradient`` by `NormSample`; 0 of what is none, which the step will reject."""
        with suppress(Exception):
            return self._sample.square(gradient) if self._sample else 0.0
        return 0.0

    @abstractmethod
    def _step(self, gradient: Any, k: int | None, density: float | None, check: bool) -> Any:
        """Take a step."""

    @abstractmethod
    def forget(self) -> None:
        """Have the algorithm forget what it knew of the residual."""

    @abstractmethod
    def sibling(self, algorithm: str | Algorithm) -> Spending:
        """Return a reducer with another algorithm that shares the residual."""
