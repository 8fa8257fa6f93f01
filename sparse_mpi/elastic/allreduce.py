"""Reduce one gradient in every step of a training run that survives the loss of ranks: `ElasticAllreduce`.

A step is a transaction. What it would send is worked out, and then all ranks meet once more: a rank that leaves this
meeting knows that every other one has its result too. Only then does anything leave the residual. If a rank is lost
before, the survivors shrink the communicator and reduce the same acc again; if it is lost after some have left the
meeting, the others learn that from them and finish the step as it was. So all survivors have the same results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.algorithms import Reduction
from sparse_mpi.arrays import Array, like
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.comm.failure import RankFailure
from sparse_mpi.elastic.copies import ROUNDINGS, Copies
from sparse_mpi.elastic.departure import Departure, TooFewRanks
from sparse_mpi.reducer.reducer import SparseAllreduce
from sparse_mpi.sparse import leave


class ElasticAllreduce(SparseAllreduce):
    """A `SparseAllreduce` whose steps survive the loss of ranks. Making one is collective.

    Args:
        layout, options: as for `SparseAllreduce`. ``comm`` must be elastic: MPI's where it was started with
            ``mpirun --with-ft ulfm``, or a rank of a `World`. ``clip_norm`` is not possible yet.
        copy_every: T, the steps in which each rank's residual is copied to the next rank, a part in each step. What a
            rank has put into its residual for longer is not lost with it. 0 copies nothing, and all of it is lost.
        copy: ``"bfloat16"`` copies in two bytes an entry, 2 n / T bytes a step; ``"exact"`` in as many as it has.
        min_ranks: the fewest ranks with which to go on.

    Attributes:
        ranks: how many ranks' gradients are in the last result: divide by it for the mean.
        departures: the losses so far, in their order.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; raised on every rank.
    """

    def __init__(
        self,
        layout: Any,
        *,
        comm: Any = None,
        copy_every: int = 100,
        copy: str = "bfloat16",
        min_ranks: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(layout, comm=comm, **options)
        with same_on_all_ranks(self.comm) as say:
            self._check(copy_every, copy, min_ranks)
            say(copy_every=copy_every, copy=copy, min_ranks=min_ranks)
        self.comm.fail_alone()
        self.min_ranks, self.ranks = min_ranks, self.comm.size
        self.departures: list[Departure] = []
        self.number = self.comm.rank  # of this rank at the start
        self.members = list(range(self.comm.size))  # of `comm`, by their numbers at the start
        self._copies = Copies(copy_every, copy) if copy_every else None
        self._inherited: list[Array] = []  # copies of the residuals of lost ranks, not yet added to this rank's
        self._completed = 0  # steps

    def _check(self, copy_every: int, copy: str, min_ranks: int) -> None:
        """Raise ValueError unless the arguments are good."""
        if not self.comm.elastic:
            raise ValueError(
                "comm must be one that survives the loss of a rank, got one that does not; start with "
                "`mpirun --with-ft ulfm` of Open MPI 5, or take SparseAllreduce"
            )
        if copy_every < 0:
            raise ValueError(f"copy_every must be at least 1 step, or 0 for no copies, got {copy_every}")
        if copy not in ROUNDINGS:
            raise ValueError(f"copy must be one of {', '.join(map(repr, ROUNDINGS))}, got {copy!r}")
        if not 1 <= min_ranks <= self.comm.size:
            raise ValueError(f"min_ranks must be in [1, {self.comm.size}], the number of ranks, got {min_ranks}")
        if self.clip_norm is not None:
            raise ValueError(f"clip_norm must be None where ranks may be lost, got {self.clip_norm}")
        if not self.feedback.divisible:
            raise ValueError(
                f"feedback must be a rule that can lose a rank, got {self._rule!r}, whose ranks need what the lost "
                "one remembered; take feedback='residual'"
            )

    def _step(self, gradient: Any, k: int | None, density: float | None, check: bool) -> Any:
        """Carry out `step` by all ranks that are left when all of them have its result."""
        start, before = perf_counter(), self.comm.traffic.copy()
        self.comm.begin_reduction()
        acc: Array | None = None
        add: Array | None = None

        def attempt() -> Reduction:
            nonlocal acc, add
            # Check the arguments, copy a part of the residual, and prepare. Nothing has changed yet.
            flat, k_now = self._agree(gradient, k, density, check)
            self._exchange_copies()
            self._prepare()
            # Accumulate, once. What lost ranks owed is now owed by this one.
            if acc is None:
                acc, add = self._accumulate(flat, False)
            elif add is not None:
                self._join(acc, add)
                add = None
            if self._inherited:
                self._inherit(acc, add)
                add = None
            # Reduce.
            return self._reduce(acc, k_now, add)

        reduction = self._transaction(attempt)
        self._report(reduction, start, before)
        self._check_result(reduction, None, self.algorithm)
        return leave(self.feedback.outcome(reduction.total), gradient)

    def _flush(self, like: Any, check: bool) -> Any:
        """Carry out `flush` by all ranks that are left when all of them have its result."""
        start, before = perf_counter(), self.comm.traffic.copy()
        self.comm.begin_reduction()

        def attempt() -> Reduction:
            acc = self._agree_on_flush(check)
            self._inherit(acc, None)
            return self._reduce_all(acc)

        reduction = self._transaction(attempt)
        self._report(reduction, start, before)
        return leave(self.feedback.outcome(reduction.total), like)

    def _transaction(self, attempt: Callable[[], Reduction]) -> Reduction:
        """Return the reduction that ``attempt()`` makes, once all ranks that are left have it, and consume it."""
        while True:
            staged: Reduction | None = None
            try:
                self.ranks = self.comm.size
                self.feedback.share_among(self.ranks)
                staged = attempt()
                # Meet: whoever leaves here knows that all others have the result too.
                self.comm.barrier()
                return self._complete(staged)
            except Exception as error:
                # A message that a failure has cut short can raise anything
                if not isinstance(error, RankFailure) and not self.comm.broken():
                    raise
                began = perf_counter()
                lost, completed = self._shrink()
            # Another rank has left the meeting: then this one has the result too, and the step is complete.
            finished = None
            if completed > self._completed:
                assert staged is not None, "a step is complete only if all ranks have its result"
                finished = self._complete(staged)
            self._do_without(lost, perf_counter() - began)
            if finished is not None:
                return finished

    def _complete(self, staged: Reduction) -> Reduction:
        """Return ``staged``, the result of the step: only now anything leaves the residual."""
        self._completed += 1
        self.feedback.consume(staged.sent, staged.total)
        if self._copies is not None:
            self._copies.commit(staged.total)
        return staged

    def _agree(self, gradient: Any, k: int | None, density: float | None, check: bool) -> tuple[Array, int]:
        """Return the flat gradient ``(n,)`` and k; refuse what takes messages after the step, which may fail too."""
        if check or self.watch is not None:
            with same_on_all_ranks(self.comm):
                raise ValueError("check must be False and watch None where ranks may be lost; take SparseAllreduce")
        return super()._agree(gradient, k, density, check)

    def _exchange_copies(self) -> None:
        """Copy a part of the residual to the next rank, unless a rank was lost in this step."""
        lost_now = bool(self.departures) and self.departures[-1].step == self._completed
        if self._copies is not None and not lost_now:
            self._copies.exchange(self.residual, self._completed, self.members, self.comm)

    def _inherit(self, acc: Array, add: Array | None) -> None:
        """Make acc complete, see `_join`, and add to it what lost ranks owed."""
        self._join(acc, add)
        for copy in self._inherited:
            kernels.accumulate(acc, like(copy, acc).astype(acc.dtype, copy=False))
        self._inherited.clear()

    def _join(self, acc: Array, add: Array | None) -> None:
        """Make acc complete: ``add``, if anything, joins it unless a selection has seen to that."""
        if add is not None and not any(selector.added for selector in self._selectors):
            kernels.accumulate(acc, add)
        for selector in self._selectors:
            selector.reset()

    def _shrink(self) -> tuple[set[int], int]:
        """Go on with the ranks that are left; return those that were lost, and the steps that any other completed."""
        while True:
            # Revoke: no rank shall wait for one that has come here.
            self.comm.revoke()
            self.comm = self.comm.shrink()
            try:
                own = np.array([self.number, self._completed], np.int64)
                facts = self.comm.allgather(own, control=True)
                break
            except RankFailure:  # another rank is lost here
                continue
        numbers = facts[:, 0].tolist()
        lost = set(self.members).difference(numbers)
        self.members = numbers
        return lost, int(facts[:, 1].max())

    def _do_without(self, lost: set[int], seconds: float) -> None:
        """Take over what lost ranks owed, as far as this rank has a copy, and restart the algorithm.

        Raises:
            TooFewRanks: there are fewer than ``min_ranks``; on all survivors.
        """
        heritage = None if self._copies is None else self._copies.inherit(lost)
        if heritage is not None:
            self._inherited.append(heritage[1])
        # The algorithm's state belongs to the ranks that were.
        self._state = self._instrumented.init(self.layout, self.k, self.comm.size)
        if not lost:  # this rank knew of the loss
            return
        inherited = () if heritage is None else (heritage[0],)
        departure = Departure(self._completed, tuple(sorted(lost)), self.comm.size, inherited, seconds)
        self.departures.append(departure)
        if self.comm.rank == 0:
            print(f"sparse_mpi: {departure}", file=sys.stderr, flush=True)
        if self.comm.size < self.min_ranks:
            raise TooFewRanks(f"{departure}, but min_ranks is {self.min_ranks}")
