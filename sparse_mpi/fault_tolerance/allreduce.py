"""Reduce one gradient in every step of a training run that survives the loss of ranks: `ElasticAllreduce`.

A step is a transaction of a `Team`: nothing leaves the residual before all ranks that are left have the result. A step
that is attempted again begins with the same acc.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from sparse_mpi import kernels
from sparse_mpi.algorithms import Algorithm, Reduction
from sparse_mpi.arrays import Array, like
from sparse_mpi.checks import check_choice, check_whole
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.fault_tolerance.copies import ROUNDINGS, Copies
from sparse_mpi.fault_tolerance.departure import Departure, TooFewRanks
from sparse_mpi.fault_tolerance.team import Team
from sparse_mpi.reduction.reducer import SparseAllreduce
from sparse_mpi.sparse import leave


class ElasticAllreduce(SparseAllreduce):
    """A `SparseAllreduce` whose steps survive the loss of ranks. Making one is collective.

    Args:
        layout, options: as for `SparseAllreduce`. With ``clip_norm`` a step is two transactions.
        team: the ranks; None makes a `Team` of ``comm`` and ``min_ranks``.
        copy_every: T, the steps in which each rank's residual is copied to the next rank, in up to 25 parts. What a
            rank has put into its residual for longer is not lost with it. 0 copies nothing, and all of it is lost.
        copy: ``"bfloat16"`` copies in two bytes an entry, 2 n / T bytes a step; ``"exact"`` in as many as it has.

    Attributes:
        ranks: how many ranks' gradients are in the last result: divide by it for the mean.
        inherited: the ranks, by their numbers at the start, whose copy this one has added to its residual.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; raised on every rank.
    """

    comm: Comm
    ranks: int

    def __init__(
        self,
        layout: Any,
        *,
        comm: Any = None,
        team: Team | None = None,
        copy_every: int = 200,
        copy: str = "bfloat16",
        min_ranks: int = 1,
        **options: Any,
    ) -> None:
        self.team: Team = Team(comm, min_ranks=min_ranks) if team is None else team
        super().__init__(layout, comm=self.team.comm, **options)
        with same_on_all_ranks(self.comm) as say:
            self._check(copy_every, copy)
            say(copy_every=copy_every, copy=copy)
        self.inherited: list[int] = []
        self._copies = Copies(copy_every, copy) if copy_every and self.feedback.owes else None
        self._heritage: list[Array] = []  # copies of the residuals of lost ranks, not yet added to this rank's
        self._factor = 1.0  # that clips the gradient of the running step
        self._known = self.team.lost  # ranks whose loss this reducer has taken note of

    @property
    def departures(self) -> list[Departure]:
        """Return the losses so far, in their order."""
        return self.team.departures

    def _check(self, copy_every: int, copy: str) -> None:
        """Raise TypeError or ValueError unless the arguments are good."""
        check_whole("copy_every", copy_every, 0, "steps", "0 copies nothing")
        check_choice("copy", copy, ROUNDINGS)
        if self._keeper is not None:
            raise ValueError(
                "budget and step_seconds must be None where ranks may be lost, because a rank that joins does not know "
                "what was spent; give k or density"
            )
        if not self.feedback.divisible:
            raise ValueError(
                f"feedback must be a rule that can lose a rank, got {self._rule!r}, whose ranks need what the lost "
                "one remembered; take feedback='residual'"
            )

    def prepare(self) -> None:
        """Do nothing: what the next step needs no gradient for is done in its transaction."""

    def sibling(self, algorithm: str | Algorithm) -> SparseAllreduce:
        """Raise ValueError: what a sibling sent would be copied nevertheless."""
        raise ValueError(f"algorithm must stay {self.algorithm} where ranks may be lost, got {algorithm}")

    def state_dict(self) -> dict[str, Any]:
        """Return what `SparseAllreduce.state_dict` does, of a residual that has what lost ranks owed."""
        self._catch_up()
        if self._heritage:
            acc = self.feedback.owed()
            self._inherit(acc, None)
        return super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state, see `SparseAllreduce.load_state_dict`. Collective among the ranks that are there."""
        self._catch_up()
        super().load_state_dict(state)

    def take_over(self, states: Sequence[dict[str, Any]], ranks: int) -> None:
        """Restore states, see `SparseAllreduce.take_over`. Collective among the ranks that are there."""
        self._catch_up()
        super().take_over(states, ranks)

    def _load(self, owed: dict[str, Any]) -> None:
        if self._copies is not None:
            self._copies.forget()
        super()._load(owed)

    def _step(self, gradient: Any, k: int | None, density: float | None, check: bool) -> Any:
        """Carry out `step` by all ranks that are left when all of them have its result."""
        start, before = perf_counter(), self.comm.traffic.copy()
        acc: Array | None = None
        add: Array | None = None

        def clipped() -> float:
            self._catch_up()
            flat, *_ = self._agree(gradient, k, density, check)
            assert self.clip_norm is not None, "it is clipped to something"
            return super(ElasticAllreduce, self)._clipping_factor(flat, self.clip_norm)

        def accumulate(flat: Array) -> Array:
            """Return acc, in which the gradient and what lost ranks owed are or, by ``add``, will be."""
            nonlocal acc, add
            if acc is None:
                acc, add = self._accumulate(flat, False)
            elif add is not None:
                self._join(acc, add)
                add = None
            if self._heritage:
                self._inherit(acc, add)
                add = None
            return acc

        def attempt() -> Reduction:
            self._catch_up()
            # Check the arguments, and prepare. Nothing has changed yet.
            flat, k_now, dtype, asked = self._agree(gradient, k, density, check)
            self._begin(k_now, dtype, asked)
            self._prepare()
            if self._copies is not None:
                self._copies.begin(self.feedback.owed(), self.comm)
            # Accumulate, once, and reduce.
            reduction = self._reduce(accumulate(flat), k_now, add)
            if self._copies is not None:
                assert acc is not None, "it was reduced"
                delegates = self.algorithm.traits.delegates_residual
                self._copies.exchange(acc, reduction, delegates, self.team.members, self.comm)
            return reduction

        try:
            self._factor = 1.0
            if self.clip_norm is not None:
                # All must have the same factor before anybody accumulates.
                self._factor = self.team.transaction(clipped)
            reduction = self._complete(self.team.transaction(attempt))
        except TooFewRanks:
            # The gradient is in the residual, for whoever goes on from here, on every rank
            self._catch_up()
            flat = accumulate(self._enter(gradient))
            self._join(flat, add)
            self.feedback.withhold(())
            raise
        self._report(reduction, start, before)
        self._check_result(reduction, None, self.algorithm)
        return leave(self.feedback.outcome(reduction.total), gradient)

    def _flush(self, like: Any, check: bool) -> Any:
        """Carry out `flush` by all ranks that are left when all of them have its result."""
        start, before = perf_counter(), self.comm.traffic.copy()

        def attempt() -> Reduction:
            self._catch_up()
            self._refuse(check)
            acc = self._agree_on_flush(check)
            self._inherit(acc, None)
            reduction = self._reduce_all(acc)
            if self._copies is not None:
                delegates = self.algorithm.traits.delegates_residual
                self._copies.exchange(acc, reduction, delegates, self.team.members, self.comm)
            return reduction

        reduction = self._complete(self.team.transaction(attempt))
        self._report(reduction, start, before)
        self._check_result(reduction, None, self.algorithm)
        return leave(self.feedback.outcome(reduction.total), like)

    def _catch_up(self) -> None:
        """Take note of the ranks that were lost since the last attempt."""
        lost, self._known = self.team.lost - self._known, self.team.lost
        if lost and self._copies is not None:
            heritage = self._copies.inherit(lost, self.feedback.leak)
            if heritage is not None:
                self.inherited.append(heritage[0])
                self._heritage.append(heritage[1])
        if self.comm is not self.team.comm:
            # The algorithm's state belongs to the ranks that were.
            self.comm = self.team.comm
            if self._copies is not None:
                self._copies.send_all()
            self._state = self._instrumented.init(self.layout, self.k, self.comm.size)
        self.ranks = self.comm.size
        self.feedback.share_among(self.ranks)

    def _complete(self, staged: Reduction) -> Reduction:
        """Return ``staged``, the result of the step: only now anything leaves the residual."""
        self.feedback.consume(staged.sent, staged.total)
        if self._copies is not None:
            self._copies.commit()
        return staged

    def _refuse(self, check: bool) -> None:
        """Raise ValueError on all ranks for what takes messages after the step, which may fail too."""
        if check or self.watch is not None:
            with same_on_all_ranks(self.comm):
                raise ValueError("check must be False and watch None where ranks may be lost; take SparseAllreduce")

    def _agree(self, gradient: Any, k: int | None, density: float | None, check: bool) -> tuple[Array, int, Any, bool]:
        """Return the flat gradient ``(n,)`` and k, see `SparseAllreduce`."""
        self._refuse(check)
        return super()._agree(gradient, k, density, check)

    def _clipping_factor(self, flat: Array, clip_norm: float) -> float:
        """Return what was found before the step."""
        return self._factor

    def _inherit(self, acc: Array, add: Array | None) -> None:
        """Make acc complete, see `_join`, and add to it what lost ranks owed."""
        self._join(acc, add)
        for copy in self._heritage:
            kernels.accumulate(acc, like(copy, acc).astype(acc.dtype, copy=False))
        self._heritage.clear()

    def _join(self, acc: Array, add: Array | None) -> None:
        """Make acc complete: ``add``, if anything, joins it unless a selection has seen to that."""
        if add is not None and not any(selector.added for selector in self._selectors):
            kernels.accumulate(acc, add)
        for selector in self._selectors:
            selector.reset()
