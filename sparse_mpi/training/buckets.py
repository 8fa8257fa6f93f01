"""Who reduces the gradient of each parameter of a model: `Buckets`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import in_turn
from sparse_mpi.fault_tolerance import ElasticAllreduce
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.settings import Settings
from sparse_mpi.training.arrivals import DENSE
from sparse_mpi.training.bucket import Bucket, cut
from sparse_mpi.training.live_ranks import LiveRanks
from sparse_mpi.training.sparse_gradients import SparseGradients


class Buckets:
    """The buckets of a model, and the parameters outside of them whose gradients are sparse tensors.

    Whether a gradient is a sparse tensor shows in the first backward pass. So the ranks tell each other what they saw
    before the first reduction, and again until every gradient has been seen on some rank.

    Args:
        settings: of all parameters together; each bucket is given its share of k.
        by_k: k was given, and not a density: it stays the same when parameters leave the buckets.
        survival: options of `ElasticAllreduce`, where ranks may be lost.
        sparse: takes the parameters that leave.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        by_k: bool,
        density: float,
        comm: Comm,
        ranks: LiveRanks,
        survival: Mapping[str, Any],
        passes: int,
        average: bool,
        max_bytes: float,
        sparse: SparseGradients,
    ) -> None:
        self.list: list[Bucket] = []
        self.home: dict[Tensor, Bucket | SparseGradients] = {}  # of each parameter
        self.sparse = sparse
        self.elements: int = settings.layout.size  # of all parameters in buckets
        self.share_left: float | None = None  # the share of a bucket's entries, once parameters have left
        self._settings, self._by_k = settings, by_k
        self._share = settings.k / self.elements if by_k else density
        self._comm, self._ranks, self._survival = comm, ranks, survival
        self._passes, self._average, self._max_bytes = passes, average, max_bytes
        self.kinds_known = False  # whether all ranks know the kind of every gradient

    def __iter__(self) -> Iterator[Bucket]:
        return iter(self.list)

    def add(self, parameters: Iterable[Tensor]) -> bool:
        """Take in those ``parameters`` that need a gradient and are new, and say if there are any: then collective."""
        new = [parameter for parameter in parameters if parameter.requires_grad and parameter not in self.home]
        for members in cut(new, self._max_bytes) if new else ():
            bucket = Bucket(members, self.make_reducer, passes=self._passes, average=self._average)
            self.list.append(bucket)
            self.home |= dict.fromkeys(members, bucket)
            self.kinds_known = False  # until these have been seen in a backward pass
        return bool(new)

    def make_reducer(self, shapes: Sequence[tuple[int, ...]]) -> SparseAllreduce:
        """Make the reducer of a bucket of parameters of these shapes, after all pending work. Collective."""
        settings = self._settings.part(list(shapes), self._share)
        # A bucket of everything takes k as it is, which a share might round to another number
        if settings.layout.size == self.elements:
            settings = replace(settings, k=min(self._settings.k, self.elements))

        def make() -> SparseAllreduce:
            if self._ranks.team is None:
                return SparseAllreduce(settings=settings, comm=self._comm)
            return ElasticAllreduce(settings=settings, team=self._ranks.team, **self._survival)

        return in_turn(self._comm, make)

    def complete(self) -> None:
        """Take the parameters whose gradients are sparse tensors, on any rank, out of their buckets. Collective."""
        seen = [bucket.seen() for bucket in self.list]
        # The largest kind wins: a rank without a gradient has 0, and sparse tensors come above dense ones
        kinds = self._ranks.any(np.concatenate(seen))
        self.know_kinds(np.split(kinds, np.cumsum([len(own) for own in seen])[:-1]))

    def kinds(self) -> list[list[int]]:
        """Return, by bucket, what all ranks know of the kinds of gradients, for `know_kinds` on one that joins them."""
        return [bucket.kinds.tolist() for bucket in self.list]

    def know_kinds(self, kinds: Sequence[Sequence[int] | np.ndarray]) -> None:
        """Take over `kinds` of other ranks, and take sparse tensors out of buckets; collective if there are any."""
        for bucket, known in zip(self.list, kinds, strict=True):
            bucket.kinds[:] = known
        # Those that leave, and the sparse dimensions of each one's gradient
        leaving = {
            parameter: int(kind) - DENSE
            for bucket in self.list
            for parameter, kind in zip(bucket.parameters, bucket.kinds, strict=True)
            if kind > DENSE
        }
        if leaving:
            self._remove(leaving)
        self.kinds_known = all(bucket.settled for bucket in self.list)

    def _remove(self, leaving: Mapping[Tensor, int]) -> None:
        """Have parameters, with as many sparse dimensions each, added up row by row; ``k`` is for the others alone."""
        # Leave: all that follows goes by where each parameter's home is
        self.home.update(dict.fromkeys(leaving, self.sparse))
        self.sparse.add(leaving, self.home)
        self.elements = sum(p.numel() for p, home in self.home.items() if home is not self.sparse)
        # Share: those that stay have all of k; where a density was given it stays the same
        if self._by_k:
            self._share = self.share_left = min(1.0, self._settings.k / max(1, self.elements))
        # Cut: buckets without the parameters that left; those that are empty then go
        left = [bucket.without_sparse(self.make_reducer) for bucket in self.list]
        self.list[:] = [bucket for bucket in left if bucket is not None]  # in place, for callers hold the list
        self.home |= {parameter: bucket for bucket in self.list for parameter in bucket.parameters}
