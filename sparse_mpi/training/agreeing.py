"""What the ranks of a `GradientReduction` must know of each other's gradients before they reduce them.

Whether a gradient is a sparse tensor shows in the first backward pass. So the ranks tell each other what they saw
before the first reduction, and again until every gradient has been seen on some rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import Handle, progress_thread_of
from sparse_mpi.fault_tolerance.team import Team
from sparse_mpi.reduction.clipping import clipping_factor, sketched
from sparse_mpi.training.bucket import Bucket
from sparse_mpi.training.gradients import DENSE
from sparse_mpi.training.rows import SparseGradients

T = TypeVar("T")


class Agreeing:
    """The part of `GradientReduction` that asks whether any rank's gradients overflow, or are sparse tensors."""

    comm: Comm
    buckets: list[Bucket]
    sparse: SparseGradients
    team: Team | None  # the ranks, if they survive the loss of others
    _home: dict[Tensor, Bucket | SparseGradients]  # who reduces the gradient of each parameter
    _scaler: Any
    _scale: float | None  # the loss scale of the gradients under way
    _kinds_known: bool  # all ranks know whose gradients are sparse tensors
    _elements: int  # of all parameters in buckets
    _by_k: bool  # the number of entries was given, and not their share
    _k: int
    _share: float | None  # of the entries of a bucket that are sent
    _share_left: float | None = None  # the same, once parameters have left the buckets
    _average: bool  # gradients become their means
    _max_norm: float | None  # to which the mean of the whole gradient is clipped
    _reducer: Any  # makes the reducer of a bucket of parameters of these shapes

    def _any(self, mine: np.ndarray) -> np.ndarray:
        """Return the largest value over the ranks of each entry of ``mine``."""
        return self._asked(lambda comm: np.asarray(comm.allreduce(mine, "max", control=True)))

    def _asked(self, question: Callable[[Comm], T]) -> T:
        """Return ``question(comm)`` of the ranks that are there, once what is under way is done."""
        return self._begin(question).wait()

    def _begin(self, question: Callable[[Comm], T]) -> Handle[T]:
        """Begin with ``question(comm)`` of the ranks that are there, behind what is under way."""

        def work() -> T:
            team = self.team
            return question(self.comm) if team is None else team.transaction(lambda: question(team.comm))

        return progress_thread_of(self.comm).start(work)

    def loss_of_all(self, loss: Any) -> Any:
        """Return the mean over the ranks of a ``loss``, or the sum if that is what ``.grad`` becomes. Collective."""
        own = loss.detach() if isinstance(loss, Tensor) else loss

        def question(comm: Comm) -> float:
            losses = comm.allgather(np.array([float(own)]), control=True)
            return float(losses.sum()) / (comm.size if self._average else 1)

        of_all = self._asked(question)
        return torch.full_like(own, of_all) if isinstance(own, Tensor) else of_all

    def _overflowed(self) -> bool:
        """Return True on all ranks if there is a loss scaler and any rank has a gradient that is not finite."""
        if self._scaler is None:
            return False
        finite = self.sparse.finite and all(bool(bucket.flat.isfinite().all()) for bucket in self.buckets)
        return bool(self._any(np.array([not finite], np.uint8))[0])

    def _clipping_factor(self, scale: float) -> float:
        """Return what all ranks multiply the whole gradient by, to clip its mean; 1 where there is nothing to clip."""
        most = self._max_norm
        if most is None:
            return 1.0
        beside = self.sparse.norm / scale
        flats = [bucket.flat for bucket in self.buckets]
        return self._asked(lambda comm: clipping_factor(sketched(flats, comm.size), most, comm, beside))

    def kinds(self) -> list[list[int]]:
        """Return, by bucket, what all ranks know of the kinds of gradients, for `know_kinds` on one that joins them."""
        return [bucket.kinds.tolist() for bucket in self.buckets]

    def know_kinds(self, kinds: Sequence[Sequence[int] | np.ndarray]) -> None:
        """Take over what other ranks know, see `kinds`, and take sparse tensors out of their buckets.

        Collective if there are any.
        """
        for bucket, known in zip(self.buckets, kinds, strict=True):
            bucket.kinds[:] = known
        leaving = {
            parameter: int(kind) - DENSE
            for bucket in self.buckets
            for parameter, kind in zip(bucket.parameters, bucket.kinds, strict=True)
            if kind > DENSE
        }
        if leaving:
            self._part_with(leaving)
        self._kinds_known = all(bucket.settled for bucket in self.buckets)

    def _settle(self) -> None:
        """Take the parameters whose gradients are sparse tensors, on any rank, out of their buckets on all.

        Ranks ask each other until every gradient has been seen on some rank.
        """
        if not self._kinds_known:
            kinds = self._any(np.concatenate([bucket.seen() for bucket in self.buckets]))
            self.know_kinds(np.split(kinds, np.cumsum([len(bucket.parameters) for bucket in self.buckets])[:-1]))

    def _part_with(self, leaving: Mapping[Tensor, int]) -> None:
        """Have parameters, with as many sparse dimensions each, added up row by row; ``k`` is for the others alone."""
        self._home.update(dict.fromkeys(leaving, self.sparse))
        self.sparse.add(leaving, self._home)
        self._elements = sum(p.numel() for p, home in self._home.items() if home is not self.sparse)
        if self._by_k:
            self._share = self._share_left = min(1.0, self._k / max(1, self._elements))
        left = [bucket.without_sparse(self._scale or 1.0, self._reducer) for bucket in self.buckets]
        self.buckets[:] = [bucket for bucket in left if bucket is not None]
        self._home |= {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters}
