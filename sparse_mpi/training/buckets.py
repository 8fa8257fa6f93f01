"""An optimizer's parameters in buckets, or tables where gradients are sparse tensors: `Buckets`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from torch import Tensor

from sparse_mpi.checks import check_whole
from sparse_mpi.comm.consistency import check_consistency
from sparse_mpi.reduction.form import WHOLE
from sparse_mpi.states import shown
from sparse_mpi.training.bucket import Bucket, cut
from sparse_mpi.training.door import ReplicatedState
from sparse_mpi.training.hooks import DENSE, UNSEEN, kind_of
from sparse_mpi.training.named_gradients import NamedGradients, in_one_order
from sparse_mpi.training.sparse_gradients import SparseGradients


class Buckets(ReplicatedState):
    """Parameters in buckets, in the order of their reduction.

    Gradients that are sparse tensors on any rank leave the buckets before the first step, see `SparseGradients`.

    Args:
        names: names of present and later parameters, in the model's order.
        tables: parameters with sparse tensors as gradients.
        max_bytes: most bytes of a bucket.
        k: entries per step of all buckets; None: shares are given.

    Attributes:
        all: buckets in the order of reduction; stays the same list.
        parameters: parameters that are reduced, by name.
        unseen: parameters without a gradient on any rank yet, and their names.
        share: share of a bucket's entries to send, once parameters have left; None: each has its k.
    """

    def __init__(
        self,
        names: Mapping[Tensor, str],
        gradients: NamedGradients,
        tables: SparseGradients,
        max_bytes: float,
        k: int | None,
    ) -> None:
        self.all: list[Bucket] = []
        self.parameters: dict[str, Tensor] = {}
        self.names: dict[Tensor, str] = dict(names)
        self.unseen: dict[Tensor, str] = {}
        self.share: float | None = None
        self._gradients, self.tables, self._max_bytes, self._k = gradients, tables, max_bytes, k
        self._of: dict[Tensor, Bucket] = {}

    def of(self, parameter: Tensor) -> Bucket | None:
        return self._of.get(parameter)

    def settled(self, bucket: Bucket) -> bool:
        """Tell if all gradients of a bucket have been seen, so that none leaves."""
        return not self.unseen or self.unseen.keys().isdisjoint(bucket.parameters)

    def new(self, own: Collection[Tensor]) -> dict[str, Tensor]:
        """Return the optimizer's ``own`` parameters, by name, that need a gradient and are not reduced."""
        new = {p for p in own if p.requires_grad and p not in self._of and p not in self.tables.dims and p.numel()}
        taken = set(self.names.values())
        for number, parameter in enumerate(own):
            if parameter in new and parameter not in self.names:
                # Numbers have changed where groups were taken out
                self.names[parameter] = next(name for n in count(number) if (name := f"parameter {n}") not in taken)
                taken.add(self.names[parameter])
        return {name: parameter for parameter, name in self.names.items() if parameter in new}

    def add(self, named: Mapping[str, Tensor]) -> None:
        """Reduce `new` parameters, too. Collective; raises as `in_one_order`."""
        ordered = partial(in_one_order, named)
        ranks = self._gradients.live
        # Making a reduction starts no thread
        named = ranks.ask(ordered) if self.parameters else ordered(ranks.comm)
        names = {parameter: name for name, parameter in named.items()}
        self.unseen |= names
        self.parameters |= named
        self._gradients.parameters |= named
        for members in cut(list(names), self._max_bytes):
            self._gradients.adopt(tuple(names[parameter] for parameter in members))
        self.rebuild()

    def rebuild(self) -> None:
        known = {bucket.vector: bucket for bucket in self.all}
        self.all[:] = [known.get(vector) or Bucket(vector) for vector in self._gradients]
        self._of = {parameter: bucket for bucket in self.all for parameter in bucket.parameters}

    def state(self) -> dict[str, Any]:
        dims, unseen = self.tables.dims, self.unseen
        return {"kinds": {n: UNSEEN if p in unseen else DENSE + dims.get(p, 0) for n, p in self.parameters.items()}}

    def read(self, state: Mapping[str, Any]) -> dict[str, Any]:
        kinds, names = state.get("kinds"), [*self.parameters]
        if not isinstance(kinds, Mapping) or kinds.keys() != set(names):
            raise ValueError(
                f"state['kinds'] must be of {len(names)} parameters, {', '.join(names)}, got {shown(kinds)}; load "
                "it into a reduction of the same parameters"
            )
        dense = {name for vector in state["vectors"] for name in vector["names"]}
        for name, kind in kinds.items():
            check_whole(f"state['kinds'][{name!r}]", kind, 0, remedy=WHOLE, most=DENSE if name in dense else 255)
        return {"kinds": {name: kinds[name] for name in names}}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take over what `read` has returned; collective if there are sparse tensors."""
        self.know_kinds(values["kinds"])

    def know_kinds(self, kinds: Mapping[str, int]) -> None:
        """Take over ``kinds`` of other ranks, and take sparse tensors out of buckets; collective if there are any."""
        seen = {self.parameters[name]: kind for name, kind in kinds.items() if kind != UNSEEN}
        self.unseen = {parameter: name for parameter, name in self.unseen.items() if parameter not in seen}
        leaving = {p: kind - DENSE for p, kind in seen.items() if kind > DENSE and p not in self.tables.dims}
        if leaving:
            self.tables.add(leaving, self.parameters.values())
            # k is for the others alone
            if self._k is not None:
                elements = self._gradients.elements - sum(parameter.numel() for parameter in leaving)
                self._gradients.share = self.share = min(1.0, self._k / max(1, elements))
            self._gradients.forget([name for name, parameter in self.parameters.items() if parameter in leaving])
            self.rebuild()

    def learn_kinds(self) -> None:
        """Learn the kinds of unseen gradients from all ranks. Collective."""
        ranks = self._gradients.live
        # Another rank may have new parameters to add, or none any more of which nothing is known
        names = [*self.unseen.values()]
        ranks.ask(lambda comm: check_consistency(comm, f"call=step of {len(names)} new: {names}"))
        # The largest kind wins: a rank without a gradient has 0, and sparse tensors come above dense ones
        kinds = ranks.any(np.array([kind_of(parameter.grad) for parameter in self.unseen], np.uint8))
        self.know_kinds(dict(zip(self.unseen.values(), kinds.tolist(), strict=True)))
