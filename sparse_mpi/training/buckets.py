"""Who reduces the gradient of each parameter of a model: `Buckets`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from torch import Tensor

from sparse_mpi.training.bucket import Bucket, cut
from sparse_mpi.training.hooks import DENSE, UNSEEN
from sparse_mpi.training.live_ranks import LiveRanks
from sparse_mpi.training.named_gradients import NamedGradients
from sparse_mpi.training.sparse_gradients import SparseGradients


class Buckets:
    """The buckets of a model, and the parameters outside of them whose gradients are sparse tensors.

    Whether a gradient is a sparse tensor shows in the first backward pass. So the ranks tell each other what they saw
    before the first reduction, and again until every gradient has been seen on some rank.

    Args:
        gradients: the vectors of the buckets.
        k: for all parameters together, if it was given: it stays the same when parameters leave the buckets.
        sparse: takes the parameters that leave.

    Attributes:
        list: in the order in which they are reduced; the object stays the same.
        parameters: by name.
        home: who has each parameter.
        share_left: the share of a bucket's entries, once parameters have left; None: its reducer's own.
        kinds_known: all ranks know the kind of every gradient.
    """

    def __init__(
        self,
        gradients: NamedGradients,
        ranks: LiveRanks,
        sparse: SparseGradients,
        *,
        k: int | None,
        passes: int,
        average: bool,
        max_bytes: float,
    ) -> None:
        self.list: list[Bucket] = []
        self.parameters: dict[str, Tensor] = {}
        self.home: dict[Tensor, Bucket | SparseGradients] = {}
        self.share_left: float | None = None
        self.kinds_known = False
        self._gradients, self._ranks, self._sparse, self._k = gradients, ranks, sparse, k
        self._passes, self._average, self._max_bytes = passes, average, max_bytes

    def __iter__(self) -> Iterator[Bucket]:
        return iter(self.list)

    def add(self, named: Mapping[str, Tensor]) -> bool:
        """Take in those parameters that need a gradient and are new, and say if there are any: then collective."""
        new = {parameter: name for name, parameter in named.items() if parameter.requires_grad}
        new = {parameter: name for parameter, name in new.items() if parameter not in self.home}
        self.parameters |= {name: parameter for parameter, name in new.items()}
        self._gradients.shapes |= {name: tuple(parameter.shape) for parameter, name in new.items()}
        for members in cut(list(new), self._max_bytes) if new else ():
            self._gradients.adopt(tuple(new[parameter] for parameter in members))
        if new:
            self.rebuild()
        return bool(new)

    def rebuild(self) -> None:
        """Have a bucket for each vector, in their order; one that is as it was stays."""
        known = {bucket.vector: bucket for bucket in self.list}
        kinds = {parameter: home.kind(parameter) for parameter, home in self.home.items()}
        self.list.clear()
        for vector in self._gradients:
            members = [self.parameters[name] for name in vector.names]
            bucket = known.get(vector)
            if bucket is None:
                bucket = Bucket(vector, members, passes=self._passes, average=self._average)
                bucket.kinds[:] = [kinds.get(parameter, UNSEEN) for parameter in members]
            self.list.append(bucket)
            self.home |= dict.fromkeys(members, bucket)
        self.kinds_known = all(bucket.settled for bucket in self.list)

    def complete(self) -> None:
        """Take the parameters whose gradients are sparse tensors, on any rank, out of their buckets. Collective."""
        seen = [bucket.seen() for bucket in self.list]
        # The largest kind wins: a rank without a gradient has 0, and sparse tensors come above dense ones
        kinds = self._ranks.any(np.concatenate(seen)) if seen else np.zeros(0, np.uint8)
        names = [name for bucket in self.list for name in bucket.vector.names]
        self.know_kinds(dict(zip(names, kinds.tolist(), strict=True)))

    def kinds(self) -> dict[str, int]:
        """Return what all ranks know of the kinds of gradients, for `know_kinds` on one that joins them."""
        return {name: self.home[parameter].kind(parameter) for name, parameter in self.parameters.items()}

    def know_kinds(self, kinds: Mapping[str, int]) -> None:
        """Take over `kinds` of other ranks, and take sparse tensors out of buckets; collective if there are any."""
        leaving: dict[Tensor, int] = {}  # with the sparse dimensions of each one's gradient
        for bucket in self.list:
            bucket.kinds[:] = [kinds[name] for name in bucket.vector.names]
            pairs = zip(bucket.parameters, bucket.kinds.tolist(), strict=True)
            leaving |= {parameter: kind - DENSE for parameter, kind in pairs if kind > DENSE}
        if leaving:
            self._remove(leaving)
        self.kinds_known = all(bucket.settled for bucket in self.list)

    def _remove(self, leaving: Mapping[Tensor, int]) -> None:
        """Have parameters, with as many sparse dimensions each, added up row by row; k is for the others alone."""
        self.home.update(dict.fromkeys(leaving, self._sparse))
        self._sparse.add(leaving, self.home)
        names = [name for name, parameter in self.parameters.items() if parameter in leaving]
        gradients = self._gradients
        if self._k is not None:
            elements = gradients.elements - sum(parameter.numel() for parameter in leaving)
            gradients.share = self.share_left = min(1.0, self._k / max(1, elements))
        gradients.forget(names)
        self.rebuild()
