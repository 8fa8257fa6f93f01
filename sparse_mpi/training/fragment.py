"""A part of a model that is synchronised at one time: a fragment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparse_mpi.comm.background import Handle, progress_thread_of
from sparse_mpi.training.named_gradients import GradientVector
from sparse_mpi.training.parameters import write_mean


class OuterExchange:
    """The sum of all ranks' outer gradients of a fragment, on its way; ``taken`` ``(n,)`` made this rank's."""

    def __init__(self, handle: Handle[Any], fragment: Fragment, taken: Tensor) -> None:
        self._handle, self._fragment, self.taken = handle, fragment, taken
        self._mean: Tensor | None = None  # no cached_property: before Python 3.12 others would wait for its lock

    @property
    def mean(self) -> Tensor:
        """Return the mean over the ranks ``(n,)``, the same bytes on each, once it is there."""
        if self._mean is None:
            # The number of ranks is asked for after the wait, in which some may be lost
            total, ranks = self._handle.wait(), self._fragment.reducer.ranks
            self._mean = write_mean(total, ranks, torch.zeros_like(self.taken))
        return self._mean


class Arrived(OuterExchange):
    """An exchange whose mean was there when its state was saved."""

    def __init__(self, mean: Tensor, taken: Tensor) -> None:
        # The mean is there, so that nobody asks the handle, which this lacks
        self._mean, self.taken = mean, taken


class Fragment:
    """Some parameters of a model, and the global parameters: what all ranks agree on in their place.

    Args:
        parameters: of one dtype on one device, with the same values on all ranks.
        vector: of their outer gradients.

    Attributes:
        common: the global parameters ``(n,)``, the same bytes on every rank.
        twins: the same by parameter, for the outer optimizer to step.
        prepared: the step after which the last outer gradient was made.
        exchange: of an outer gradient that is not yet applied.
    """

    def __init__(self, parameters: Sequence[Tensor], vector: GradientVector) -> None:
        self.parameters, self.vector, self.reducer = parameters, vector, vector.reducer
        self.common = self.local()
        self.twins = vector.split(self.common)  # views of common
        self.prepared = 0
        self.exchange: OuterExchange | None = None

    def local(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    @torch.no_grad()
    def adopt(self, flat: Tensor) -> None:
        for parameter, value in zip(self.parameters, self.vector.split(flat), strict=True):
            parameter.copy_(value)

    @contextmanager
    def globally(self) -> Iterator[None]:
        """Have the model hold the global parameters in this context, and this rank's own ones again after it."""
        own = self.local()
        self.adopt(self.common)
        try:
            yield
        finally:
            self.adopt(own)

    def prepare(self, step: int, density: float | None, check: bool) -> None:
        """Begin to reduce the outer gradient: global parameters minus this rank's own, after ``step``."""
        taken = self.local()  # a copy, because inner steps go on meanwhile
        self.vector.used = True
        self.exchange = OuterExchange(
            self.reducer.start(self.common - taken, density=density, check=check), self, taken
        )
        self.prepared = step

    def prepare_flush(self, check: bool) -> None:
        work = partial(self.reducer.flush, like=self.common, check=check)
        handle = progress_thread_of(self.reducer.comm).start(work, self.common)
        self.exchange = OuterExchange(handle, self, self.local())

    def arrive(self) -> Tensor | None:
        return self.exchange.mean if self.exchange is not None else None

    @torch.no_grad()
    def apply(self, step: Callable[[], object], alpha: float | None) -> None:
        """Have ``step()`` move the global parameters along the mean of all outer gradients, and mix them in.

        Args:
            step: of the outer optimizer; it finds the mean in ``.grad`` of the twins.
            alpha: the share of this rank's own parameters that is kept; None moves them as far as the global ones have
                moved from what this rank had when it made its outer gradient.

        Raises:
            Exception: as `SparseAllreduce.step` does.
        """
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            raise RuntimeError("apply must follow prepare or prepare_flush")
        # Step: for the outer optimizer the mean is the gradient of the global parameters
        for twin, gradient in zip(self.twins, self.vector.split(exchange.mean), strict=True):
            twin.grad = gradient
        step()
        for twin in self.twins:
            twin.grad = None
        # Mix: without steps since then take the global parameters as they are, for the difference would be rounded
        own = self.local()
        if alpha is None and not torch.equal(own, exchange.taken):
            self.adopt(own + (self.common - exchange.taken))
        else:
            self.adopt(torch.lerp(self.common, own, alpha) if alpha else self.common)
