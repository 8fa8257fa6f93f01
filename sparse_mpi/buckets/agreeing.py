"""What the ranks of a `GradientReduction` must know of each other's gradients before they reduce them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from sparse_mpi.buckets.bucket import Bucket
from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import progress_thread_of
from sparse_mpi.elastic.team import Team

T = TypeVar("T")


class Agreeing:
    """The part of `GradientReduction` that asks whether any rank's gradients overflow, or are sparse tensors."""

    comm: Comm
    buckets: list[Bucket]
    team: Team | None  # the ranks, if they survive the loss of others
    _scaler: Any
    _kinds_known: bool  # all ranks know whose gradients are sparse tensors

    def _any(self, mine: np.ndarray) -> np.ndarray:
        """Return the largest value over the ranks of each entry of ``mine``."""
        return self._asked(lambda comm: np.asarray(comm.allreduce(mine, "max", control=True)))

    def _asked(self, question: Callable[[Comm], T]) -> T:
        """Return ``question(comm)`` of the ranks that are there, once what is under way is done."""

        def work() -> T:
            team = self.team
            return question(self.comm) if team is None else team.transaction(lambda: question(team.comm))

        return progress_thread_of(self.comm).start(work).wait()

    def _overflowed(self) -> bool:
        """Return True on all ranks if there is a loss scaler and any rank has a gradient that is not finite."""
        if self._scaler is None:
            return False
        mine = np.array([not all(bool(bucket.flat.isfinite().all()) for bucket in self.buckets)], np.uint8)
        return bool(self._any(mine)[0])

    def kinds(self) -> list[list[int]]:
        """Return, by bucket, what all ranks know of the kinds of gradients, for `know_kinds` on one that joins them."""
        return [bucket.kinds.tolist() for bucket in self.buckets]

    def know_kinds(self, kinds: Sequence[Sequence[int] | np.ndarray]) -> None:
        """Take over what other ranks know, see `kinds`."""
        for bucket, known in zip(self.buckets, kinds, strict=True):
            bucket.kinds[:] = known
        self._kinds_known = all(bucket.kinds.all() for bucket in self.buckets)

    def _agree_on_kinds(self) -> None:
        """Make a gradient that is a sparse tensor on one rank a sparse tensor on all.

        This ends once every gradient has been seen on some rank.
        """
        if self._kinds_known:
            return
        kinds = self._any(np.concatenate([bucket.seen for bucket in self.buckets]))
        self.know_kinds(np.split(kinds, np.cumsum([len(bucket.seen) for bucket in self.buckets])[:-1]))
