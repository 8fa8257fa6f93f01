"""Reduce a gradient in every step, also after a loss of ranks: `ElasticAllreduce`.

A step is a transaction of a `Team`: no entry leaves the residual before all survivors have the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparse_mpi.arrays import Array
from sparse_mpi.checks import check_choice, check_whole
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.fault_tolerance.copies import ROUNDINGS, Copies
from sparse_mpi.fault_tolerance.team import Departure, Team, TooFewRanks
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.engine import Agreed, Attempt, Direct, Engine, StepPlan


class ElasticAllreduce(SparseAllreduce):
    """A `SparseAllreduce` with steps that survive a loss of ranks. Making one is collective.

    Args:
        layout, options: arguments of `SparseAllreduce`. With ``clip_norm`` a step is two transactions.
        team: the ranks; None makes a `Team` of ``comm`` and ``min_ranks``.
        copy_every: T, steps in which each rank's residual is copied to the next rank, in up to 25 parts. A lost rank
            loses at most its residual's entries since the last copy. 0 copies nothing: the whole residual is lost.
        copy: ``"bfloat16"`` copies in two bytes an entry, 2 n / T bytes a step; ``"exact"`` in the gradient's dtype.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; raised on every rank.
    """

    execution: _SurvivalExecution

    def __init__(
        self,
        layout: object = None,
        *,
        comm: object = None,
        team: Team | None = None,
        copy_every: int = 200,
        copy: str = "bfloat16",
        min_ranks: int = 1,
        **options: Any,
    ) -> None:
        team = Team(comm, min_ranks=min_ranks) if team is None else team
        super().__init__(layout, comm=team.comm, **options)
        with same_on_all_ranks(self.comm) as say:
            check_whole("copy_every", copy_every, 0, "steps", "0 copies nothing")
            check_choice("copy", copy, ROUNDINGS)
            say(copy_every=copy_every, copy=copy)
        self.team: Team = team  #: the surviving ranks
        self.execution = _SurvivalExecution(self.engine, team, copy_every, copy)
        self.departures: list[Departure] = team.departures  #: the losses so far, in their order
        #: the ranks, by their numbers at the start, whose copy this one has added to its residual
        self.inherited: list[int] = self.execution.inherited


class _SurvivalExecution(Direct):
    """Carries out steps as transactions, which the survivors retry after a loss."""

    survives = True

    def __init__(self, engine: Engine, team: Team, copy_every: int, copy: str) -> None:
        super().__init__(engine)
        self.team = team
        self.inherited: list[int] = []  # ranks whose copy was added to the residual here
        self._copies = Copies(copy_every, copy) if copy_every and engine.feedback.traits.defers else None
        self._orphaned: list[Array] = []  # residuals of lost ranks, not yet added to this rank's
        self._known = team.lost  # ranks whose loss this reducer has taken note of

    def complete(self, gradient: object, make_plan: Callable[[], StepPlan], check: bool) -> Attempt:
        """Return the attempt that all survivors have made, or raise TooFewRanks on all."""
        engine, factor = self.engine, None if self.engine.settings.clip_norm is None else 1.0

        def agree_after_losses() -> Agreed:
            self._note_losses()
            if check or engine.watch is not None:  # both take messages after the step, which may fail too
                with same_on_all_ranks(engine.comm):
                    raise ValueError("check must be False and watch None where ranks may be lost; take SparseAllreduce")
            return engine.agree(gradient, make_plan, check)

        def attempt() -> Attempt:
            agreed, delegates = agree_after_losses(), engine.exchange.placed.traits.delegates_residual
            engine.begin(agreed)
            if self._copies is not None and agreed.flat is not None:
                self._copies.begin(engine.feedback.pending(), engine.comm, delegates)
            acc = engine.accumulate(agreed.flat, factor)
            if self._orphaned:
                engine.owe(self._orphaned)
            made = engine.reduce(agreed)
            if self._copies is not None:
                self._copies.exchange(acc, made.reduction, delegates, self.team.members, engine.comm)
            return made

        try:
            if factor is not None and gradient is not None:
                # All must have the same factor before any rank accumulates.
                factor = self.team.transaction(lambda: engine.clipping_factor(agree_after_losses().flat))
            made = self.team.transaction(attempt)
        except TooFewRanks:
            self._note_losses()
            if gradient is not None:
                engine.accumulate(engine.entered(gradient), factor)
            engine.abandon()
            raise
        except BaseException:
            engine.abandon()
            raise
        if self._copies is not None:
            self._copies.commit()
        return made

    def catch_up(self) -> None:
        self._note_losses()
        if self._orphaned:
            self.engine.owe(self._orphaned)

    def loaded(self) -> None:
        """Take note that a state was loaded: the copy of another rank's residual is useless."""
        if self._copies is not None:
            self._copies.forget()

    def _note_losses(self) -> None:
        engine = self.engine
        lost, self._known = self.team.lost - self._known, self.team.lost
        if lost and self._copies is not None:
            orphaned = self._copies.inherit(lost, engine.feedback.traits.leak)
            if orphaned is not None:
                self.inherited.append(orphaned[0])
                self._orphaned.append(orphaned[1])
        if engine.comm is not self.team.comm:
            # The algorithm's state belongs to the former ranks.
            engine.comm = self.team.comm
            if self._copies is not None:
                self._copies.send_all()
            engine.start_anew()
        engine.ranks = engine.comm.size
