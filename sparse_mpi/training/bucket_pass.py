"""The gradients of an optimizer in a step, from their arrival to their mean: `BucketPass`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import hypot
from typing import Any

import numpy as np
from torch import Tensor

from sparse_mpi.comm import Comm
from sparse_mpi.reduction.clipping import factor_of
from sparse_mpi.training.arrivals import Arrivals
from sparse_mpi.training.bucket import LARGE, Bucket
from sparse_mpi.training.buckets import Buckets
from sparse_mpi.training.grammar import LEFT
from sparse_mpi.training.named_gradients import GradientVector, NamedGradients, Total
from sparse_mpi.training.step_pass import Pass, finished


class BucketPass:
    """Reduces buckets and tables: some buckets as gradients come, the rest in the step.

    A bucket may start when its gradients have come and all buckets before it have started; the last waits for the step,
    in which the ranks agree whether a gradient has changed since. If so, all are reduced anew.

    Args:
        arrivals: gradients that have come since the last reduction.
        scale: `LossScale`, where there is a loss scaler.
        average: True for the mean over the ranks in ``.grad``, False for the sum.

    Attributes:
        max_norm: clip norm of the mean of all gradients together; None: no clipping.
        totals: sums of the last reduction, without a step along them yet; None: none.
        overflowed: True if the last step was not reduced: a gradient was not finite on some rank.
    """

    def __init__(
        self,
        gradients: NamedGradients,
        bucketing: Buckets,
        arrivals: Arrivals,
        *,
        max_norm: float | None,
        scale: Any,
        average: bool,
    ) -> None:
        self.reductions = Pass()
        self.totals: list[Total] | None = None
        self.overflowed: bool = False
        self._gradients, self._bucketing, self._tables = gradients, bucketing, bucketing.tables
        self._arrivals, self.max_norm, self._scale, self._average = arrivals, max_norm, scale, average
        self._begun = 0  # buckets that were begun in a backward pass

    def clip(self, norm: float | None) -> None:
        self.max_norm = norm

    def divisor(self, vector: GradientVector) -> float:
        return vector.reducer.ranks if self._average else 1.0

    @property
    def arrived(self) -> bool:
        """Tell if gradients have come since the last reduction, and were not cleared."""
        return bool(self.reductions.begun) or any(parameter.grad is not None for parameter in self._arrivals.came)

    @property
    def left(self) -> bool:
        """Tell if a gradient still is an update of the last step."""
        return self._arrivals.grown or any(bucket.vector.left(bucket.parameters) for bucket in self._bucketing.all)

    @property
    def _comm(self) -> Comm:
        return self._gradients.comm

    def somewhere(self, here: bool) -> bool:
        """Tell if a condition holds ``here`` or on another rank. Collective."""
        return bool(self._gradients.live.any(np.array([here], np.uint8))[0])

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Have nothing under way behind an error; differences between ranks end all, see `Pass.open`."""
        self.reductions.open(self._comm)
        try:
            yield
        except Exception:
            self.abandon()
            self._tables.abandon()
            raise
        finally:
            if not self.reductions.begun:
                self.reductions.end()

    def wait(self) -> None:
        """Wait for all under way. If others began fewer before another call, the rest fails on all."""
        try:
            finished(place.vector.handle.wait for place in self.reductions.begun if place.vector.handle is not None)
        except Exception:
            self.abandon()
            raise

    def withdraw(self) -> None:
        """Withdraw all reductions under way, on all ranks alike; gradients stay to be reduced."""
        self.reductions.abandon()
        self._begun = 0

    def abandon(self) -> None:
        """`withdraw`, and forget what has come."""
        self.withdraw()
        self._arrivals.forget()

    def arrive(self, parameter: Tensor, options: Mapping[str, Any]) -> None:
        """Start all complete buckets, behind the hook that has ``parameter.grad`` of this pass."""
        last = self._arrivals.count(parameter)
        bucket = self._bucketing.of(parameter)
        if bucket is None:  # a table
            return
        self._arrivals.grown |= bucket.vector.left([parameter], 1)
        early = bucket is not self._bucketing.all[-1] and self._bucketing.settled(bucket)
        if self._arrivals.looks:
            if early and self._arrivals.complete(bucket):
                bucket.take(bucket.parameters, apart=True)
        elif self.totals is None and self._arrivals.may_begin:
            if early and last and parameter.numel() >= LARGE:
                bucket.take([parameter], apart=True)
            # In the order of the buckets, which is the same on all ranks: a complete one waits for all before it
            self.begin_settled(options, self._arrivals.complete, apart=True)
            self._begun = len(self.reductions.begun)

    def begin_settled(
        self,
        options: Mapping[str, Any],
        ready: Callable[[Bucket], bool] = lambda bucket: True,
        apart: bool = False,
    ) -> None:
        """Begin all buckets that other ranks may have begun in their backward pass, before the next question."""
        if not self._arrivals.overlaps:
            return
        for bucket in self._bucketing.all[len(self.reductions.begun) : -1]:
            if not self._bucketing.settled(bucket) or not ready(bucket):
                return
            bucket.gather(apart=apart)
            self.reductions.begin(bucket, **options)

    def reduce(self, options: Mapping[str, Any], problem: str | None = None) -> list[Total]:
        """Reduce the buckets that are left, and write the results to ``.grad``. Collective.

        Args:
            options: options of `GradientVector.start`.
            problem: error text for all ranks to raise; None: no error.

        Returns:
            Sums of the buckets; an empty list, with `overflowed`, if the step is left out.
        """
        scale = 1.0 if self._scale is None else float(self._scale.now())
        buckets = self._bucketing.all
        if any(bucket.changed for bucket in buckets[: self._begun]):
            self._next.revised = True
        problem = problem or (LEFT if self.left else None)
        if self._arrivals.changed(buckets):
            self._arrivals.begin_late(self._comm.rank == 0)
        self.begin_settled(options)
        if self._bucketing.unseen:
            self._bucketing.learn_kinds()
        waiting = buckets[len(self.reductions.begun) :]
        if problem is not None:
            self._next.objection = RuntimeError(problem)
        for bucket in waiting:
            bucket.gather(scale)
        # What a scaler leaves out leaves no trace, to the bit. It knows of gradients that were changed since, too
        if self._scale is not None:
            fit = self._tables.finite and all(bucket.finite for bucket in waiting)
            parts: list[Any] = [self._tables, *(bucket.reducer.engine for bucket in waiting)]
            for part in parts:
                part.unfit = not fit or self._scale.found()
        # Start: tables first, because the norm of their sum is a part of the whole gradient's
        self._tables.start(self._gradients.live.begin)
        self.overflowed, factor = False, self._begin_rest(waiting, scale, options)
        refused = self.reductions.refused(self._tables.refusal())
        if refused is not None and refused.revised:
            self._arrivals.begin_late(self._comm.rank == 0)
            self.reductions.end()
            for bucket in buckets:
                bucket.gather(scale)
            factor = self._begin_rest(buckets, scale, options)
            refused = self.reductions.refused(self._tables.refusal())
        if refused is not None:  # a gradient of some rank is not finite: all become NaN
            self.abandon()
            self._tables.fail()
            for bucket in buckets:
                bucket.fail()
            self.overflowed, self.totals = True, []
            return self.totals
        # Finish: results come back in the order of the starts
        try:
            self.totals = self.reductions.write(lambda vector: self.divisor(vector) / scale)
        finally:
            self.abandon()
            self._tables.finish(factor)
        self._gradients.flushed = False
        return self.totals

    @property
    def _next(self) -> Any:
        begun = len(self.reductions.begun)
        return self._bucketing.all[begun].reducer.engine if self._bucketing.all else self._tables

    def _begin_rest(self, waiting: list[Bucket], scale: float, options: Mapping[str, Any]) -> float:
        """Begin the ``waiting`` buckets, times the factor that clips the whole gradient; return it."""
        factor = 1.0
        if self.max_norm is not None:
            norm = self._gradients.live.norm_of_mean([bucket.flat for bucket in self._bucketing.all], self.max_norm)
            # Tables are reduced with the loss scale, buckets without it
            factor = factor_of(hypot(norm, self._tables.norm / scale), self.max_norm)
        for bucket in waiting:
            bucket.factor = factor
            self.reductions.begin(bucket, **options)
        return factor
