"""Measure what the totals of a `GradientReduction` are worth, all buckets together."""

from __future__ import annotations

from functools import reduce
from operator import add

from sparse_mpi.reduction.watch import Quality, Watch
from sparse_mpi.training.bucket import Bucket


class WatchedReduction:
    """The part of `GradientReduction` that measures the quality of some steps."""

    buckets: list[Bucket]

    def watch(self, every: int, step: int = 0) -> None:
        """Measure the quality of every Nth step from now on, see `Watch`; two dense allreduces for each.

        Args:
            every: N, at least 1.
            step: the number of the step before.

        Raises:
            ValueError: every is below 1.
        """
        if every < 1:
            raise ValueError(f"every must be at least 1 step, got {every}")
        for bucket in self.buckets:
            bucket.watch = Watch(every, step)

    @property
    def quality(self) -> Quality | None:
        """Return the quality of the last step that was measured, all buckets together; None if there is none."""
        measured = [bucket.watch.quality for bucket in self.buckets if bucket.watch is not None]
        known = [quality for quality in measured if quality is not None]
        return reduce(add, known) if known else None
