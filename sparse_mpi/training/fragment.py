"""A fragment: a part of a model, synchronised at one time."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparse_mpi.checks import present
from sparse_mpi.comm.background import Handle
from sparse_mpi.feedback.base import whole_state
from sparse_mpi.training.named_gradients import GradientVector, Total, write_mean


class Fragment:
    """Some parameters of a model, and their global values, equal on all ranks.

    The optimizer ``outer`` steps these in place of the model's from now on; its groups and state stay.

    Attributes:
        common: the global parameters ``(n,)``, the same bytes on every rank.
        twins: the same by parameter.
        prepared: the step after which the last outer gradient was made.
        taken: this rank's parameters ``(n,)`` in that outer gradient; None: it is applied.
    """

    def __init__(self, vector: GradientVector, outer: Optimizer) -> None:
        self.vector, self.reducer, self._outer = vector, vector.reducer, outer
        self.common = self.local()
        self.twins = vector.split(self.common)  # views of common
        self.prepared = 0
        self.taken: Tensor | None = None
        self._handle: Handle[Total] | None = None  # the sum's handle, until `mean` has waited for it
        self._mean: Tensor | None = None
        twins = dict(zip(vector.parameters, self.twins, strict=True))
        for group in outer.param_groups:
            group["params"] = [twins.get(p, p) for p in group["params"]]
        for parameter in [p for p in outer.state if p in twins]:
            outer.state[twins[parameter]] = outer.state.pop(parameter)

    def local(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.vector.parameters])

    @torch.no_grad()
    def adopt(self, flat: Tensor) -> None:
        for parameter, value in zip(self.vector.parameters, self.vector.split(flat), strict=True):
            parameter.copy_(value)

    def prepare(self, step: int, **options: Any) -> None:
        """Begin to reduce the outer gradient: global parameters minus this rank's own, after ``step``."""
        self.taken, self.prepared, self.vector.used = self.local(), step, True
        self._handle = self.reducer.start(self.common - self.taken, **options)

    def flush(self, check: bool) -> None:
        """Set ``.grad`` of the global parameters to the mean of all residuals, which become 0. Collective."""
        self._set(self._mean_of(self.reducer.flush(like=self.common, check=check)))

    def _set(self, mean: Tensor) -> None:
        for twin, gradient in zip(self.twins, self.vector.split(mean), strict=True):
            twin.grad = gradient

    def mean(self) -> Tensor | None:
        """Wait for the mean ``(n,)`` of the outer gradients, the same bytes on each rank; None: it is applied."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._mean = self._mean_of(handle.wait())
        return self._mean

    @torch.no_grad()
    def begin_anew(self, loaded: Container[Tensor]) -> None:
        """Take ``loaded`` parameters as they are now for global ones.

        Replaced weights lose their residuals, and their part of an outer gradient under way, which goes on for the
        others. The outer optimizer's state stays.
        """
        mean, remembered = self.mean(), whole_state(self.reducer.feedback).values()
        begin = 0
        for parameter, twin in zip(self.vector.parameters, self.twins, strict=True):
            part = slice(begin, begin := begin + parameter.numel())
            if parameter in loaded:
                twin.copy_(parameter)
                for array in remembered:
                    array[part] = 0
                if mean is not None:
                    mean[part] = 0
                if self.taken is not None:
                    self.taken[part] = self.common[part]

    def _mean_of(self, total: Total) -> Tensor:
        # The number of ranks is asked for after the sum, in which some may be lost
        return write_mean(total, self.reducer.ranks, torch.zeros_like(self.common))

    @torch.no_grad()
    def apply(self, alpha: float | None) -> None:
        """Step the global parameters along the mean of all outer gradients, and mix them in by ``alpha``."""
        self._set(present(self.mean(), "apply must follow prepare"))
        self._outer.step()
        self._outer.zero_grad()
        own, taken, self.taken, self._mean = self.local(), self.taken, None, None
        # Without steps since then take the global parameters as they are, for the difference would be rounded
        if alpha is None and taken is not None and not torch.equal(own, taken):
            self.adopt(own + (self.common - taken))
        else:
            self.adopt(torch.lerp(self.common, own, alpha) if alpha else self.common)

    @torch.no_grad()
    def restore(self, common: Tensor, own: Tensor, prepared: int, mean: Tensor | None, taken: Tensor | None) -> None:
        """Go on from global parameters, this rank's own, and a mean that is not applied yet, if any."""
        self.common.copy_(common)
        self.adopt(own)
        self.prepared, self._handle = prepared, None
        self._mean, self.taken = (None if x is None else x.to(self.common) for x in (mean, taken))
