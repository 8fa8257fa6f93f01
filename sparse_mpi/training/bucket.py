"""Collect the gradients of some parameters, reduce them as one flat vector, and hand it back: `Bucket`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_mpi.comm.background import Handle
from sparse_mpi.sparse import SparseVector
from sparse_mpi.training.hooks import UNSEEN, Arrivals, kind_of
from sparse_mpi.training.named_gradients import GradientVector, write_mean


def cut(parameters: Sequence[Tensor], max_bytes: float) -> list[list[Tensor]]:
    """Cut parameters into buckets, in about the order in which a backward pass finishes them: the last come first.

    A bucket holds neighbours of one dtype and device, in the order of ``parameters``, and at most ``max_bytes`` unless
    it is a single parameter. The bucket that is finished last holds an eighth of that, because no backward pass is left
    to hide its reduction.
    """
    # The model's first parameters get their gradients last
    first = _leading(parameters, max_bytes / 8)
    buckets: list[list[Tensor]] = []
    # The others are cut from the end, as a backward pass goes, but keep their order within a bucket
    for _, same in groupby(reversed(parameters[len(first) :]), key=_kind):
        rest = list(same)
        while rest:
            buckets.append(_leading(rest, max_bytes)[::-1])
            rest = rest[len(buckets[-1]) :]
    return [*buckets, first] if first else buckets


def _leading(parameters: Sequence[Tensor], max_bytes: float) -> list[Tensor]:
    """Return as many of the first parameters, of one dtype and device, as fit; at least one if there is any."""
    taken: list[Tensor] = []
    size = 0
    for parameter in parameters:
        size += parameter.numel() * parameter.element_size()
        if taken and (size > max_bytes or _kind(parameter) != _kind(taken[0])):
            break
        taken.append(parameter)
    return taken


def _kind(parameter: Tensor) -> tuple[torch.dtype, torch.device]:
    return parameter.dtype, parameter.device


class Bucket:
    """The gradients of the parameters of a vector, which it collects as they become final, reduces, and hands back.

    It is settled once the ranks know of all its gradients that they are no sparse tensors, which leave it before. Until
    then gradients stay where they are until they are reduced, so that no memory is taken for those that leave. All have
    one dtype and device, and are the sum of ``passes`` backward passes.

    Attributes:
        kinds: of the gradients, as far as all ranks know.
    """

    def __init__(self, vector: GradientVector, *, passes: int, average: bool) -> None:
        self.vector, self.reducer = vector, vector.reducer
        self.parameters: list[Tensor] = vector.parameters
        self.arrivals: Arrivals = Arrivals(self.parameters, passes)
        self.kinds: np.ndarray = np.zeros(len(self.parameters), np.uint8)
        self._left = False  # a pass has added to the update of the last step
        self._average = average
        self._numbers = {parameter: number for number, parameter in enumerate(self.parameters)}
        self._absent: list[int] = []  # parameters without a gradient, of those that were collected
        self._version = 0  # of the buffer, when the reduction under way began
        self._marks: dict[int, Tensor] = {}  # of gradients that have come, while they are looked at

    @cached_property
    def flat(self) -> Tensor:
        """Return the gradient, and then the result ``(n,)``, made when the first part of it is collected."""
        return torch.zeros(self.reducer.layout.size, dtype=self.parameters[0].dtype, device=self.parameters[0].device)

    @cached_property
    def _views(self) -> list[Tensor]:
        return self.vector.split(self.flat)

    def kind(self, parameter: Tensor) -> int:
        return int(self.kinds[self._numbers[parameter]])

    @property
    def settled(self) -> bool:
        return bool(self.kinds.all())

    @property
    def ready(self) -> bool:
        return self.settled and self.arrivals.complete and not self.arrivals.beyond and not self._left

    @property
    def left(self) -> bool:
        """Return True if a gradient is the update of the last step, or that and more."""
        return self._left or self.vector.left(self.parameters)

    def seen(self) -> np.ndarray:
        """Return the kinds of this rank's gradients ``(p,)``, for as long as all ranks do not know them."""
        own = np.array([kind_of(parameter.grad) for parameter in self.parameters], np.uint8)
        # What all ranks know stays, also where this rank has no gradient in this step
        return np.where(self.kinds == UNSEEN, own, self.kinds)

    def arrive(self, parameter: Tensor, look: bool) -> None:
        """Count a backward pass of a parameter; collect its gradient after the last one, or ``look`` at it."""
        self._left |= self.vector.left([parameter], 1)
        if self.arrivals.count(parameter):
            number = self._numbers[parameter]
            if look and parameter.grad is not None:
                self._marks[number] = _mark(parameter.grad)
            if self.settled:
                self._take(number)

    @property
    def touched(self) -> bool:
        """Return True if a gradient is not what it was when it came: it was changed, or more was added to it."""
        now = [self.parameters[number].grad for number in self._marks]
        there = [_mark(gradient) for gradient in now if gradient is not None]
        if len(there) < len(now) or not there:
            return bool(now)
        # The host waits for a device once
        return not torch.equal(torch.stack(there), torch.stack(list(self._marks.values())))

    @property
    def changed(self) -> bool:
        """Return True if a gradient is not what is being reduced: torch counts what happens to a tensor."""
        pairs = zip(self.parameters, self._views, strict=True)
        return (
            self.arrivals.beyond
            or self.flat._version != self._version
            or any(parameter.grad is not view and parameter.requires_grad for parameter, view in pairs)
        )

    def collect(self, scale: float = 1.0) -> None:
        """Take all gradients as they are now, divided by a loss ``scale``; None is zero."""
        self._absent = [number for number in range(len(self.parameters)) if not self._take(number)]
        if scale != 1.0:
            self.flat.div_(scale)

    def reset(self) -> None:
        self.arrivals.reset()
        self._left = False
        self._marks.clear()

    @torch.no_grad()
    def _take(self, number: int) -> bool:
        """Copy ``.grad`` of a parameter to the buffer that is reduced; return False if there is none, which is zero."""
        parameter, view = self.parameters[number], self._views[number]
        gradient = parameter.grad if parameter.requires_grad else None
        if gradient is None:
            view.zero_()
            return False
        if gradient is not view:
            # Autograd or the caller has put the gradient elsewhere. A single copy is enough: its other memory is freed
            view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
            parameter.grad = view
        return True

    def start(self, *, density: float | None, check: bool, factor: float = 1.0) -> Handle[Any]:
        """Begin to reduce what was collected, times ``factor``; half precision is widened before it is scaled."""
        wide = torch.promote_types(self.flat.dtype, torch.float32)
        gradient = self.flat if factor == 1 else self.flat.to(wide) * factor
        self._version = self.flat._version
        return self.vector.start(gradient, self._absent, density=density, check=check)

    @torch.no_grad()
    def finish(self, scale: float = 1.0, flushed: bool = False) -> SparseVector[Tensor] | Tensor:
        """Wait for the sum and return it; set ``.grad`` of the parameters to its mean times ``scale``."""
        total = self.vector.wait(flushed)
        # Skipped are parameters without a gradient on any rank; in a flush there is no gradient at all
        skipped = range(len(self.parameters)) if flushed else self.reducer.absence.everywhere
        # The loss scaler, which divides .grad by the scale, is to find it there
        write_mean(total, self.divisor / scale, self.flat)
        for number, (parameter, mean) in enumerate(zip(self.parameters, self._views, strict=True)):
            # None makes torch's optimizers leave a parameter alone, as they do on one rank
            gone = not parameter.requires_grad or (number in skipped and not bool(mean.any()))
            parameter.grad = None if gone else mean
        return total

    @property
    def divisor(self) -> float:
        return self.reducer.ranks if self._average else 1.0

    @torch.no_grad()
    def fail(self) -> None:
        """Set ``.grad`` of the parameters to NaN, so that a loss scaler sees that gradients overflowed."""
        self.flat.fill_(torch.nan)
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.grad = view if parameter.requires_grad else None


def _mark(gradient: Tensor) -> Tensor:
    """Return a number that changes with the bits of a gradient, however they are changed."""
    values = (gradient._values() if gradient.is_sparse else gradient).detach()
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    return values.contiguous().view(kind).sum(dtype=torch.int64)
