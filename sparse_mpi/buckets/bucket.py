"""Buckets: parameters of a torch model whose gradients are reduced together, as one flat vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_mpi.comm.background import Handle
from sparse_mpi.reducer import SparseAllreduce
from sparse_mpi.sparse import SparseVector

UNSEEN, DENSE, SPARSE = 0, 1, 2  # whether a gradient is a sparse tensor, as of nn.Embedding


def cut(parameters: Sequence[Tensor], most_bytes: float) -> list[list[Tensor]]:
    """Parameters as buckets, in about the order in which a backward pass finishes their gradients: the last come first.

    A bucket holds neighbours of one dtype and device, in the order they came in, and at most ``most_bytes`` unless it
    is a single parameter. The last to be finished holds an eighth of that: no backward pass is left to hide it.
    """
    first = _leading(parameters, most_bytes / 8)
    buckets: list[list[Tensor]] = []
    for _, same in groupby(reversed(parameters[len(first) :]), key=_kind):
        rest = list(same)
        while rest:
            buckets.append(_leading(rest, most_bytes)[::-1])
            rest = rest[len(buckets[-1]) :]
    return [*buckets, first] if first else buckets


def _leading(parameters: Sequence[Tensor], most_bytes: float) -> list[Tensor]:
    """As many of the first, of one dtype and device, as fit; one at least if there is any."""
    taken: list[Tensor] = []
    held = 0
    for parameter in parameters:
        held += parameter.numel() * parameter.element_size()
        if taken and (held > most_bytes or _kind(parameter) != _kind(taken[0])):
            break
        taken.append(parameter)
    return taken


def _kind(parameter: Tensor) -> tuple[torch.dtype, torch.device]:
    return parameter.dtype, parameter.device


def cut_states(states: Sequence[Mapping[str, Any]], buckets: int) -> list[list[dict[str, Any]]]:
    """``states`` of reductions of so many buckets, bucket by bucket.

    Raises:
        ValueError: one has another number of buckets.
    """
    for state in states:
        count = len(state.get("buckets", ()))
        if count != buckets:
            raise ValueError(
                f"state['buckets'] must hold {buckets} buckets, got {count}; load it into a reduction of the same "
                "parameters with the same bucket_cap_mb"
            )
    return [[state["buckets"][number] for state in states] for number in range(buckets)]


def check_options(parameters: Sequence[Tensor], cap: float | None, passes: int, in_place: bool, scaler: Any) -> None:
    """Raise ValueError unless gradients of ``parameters`` can be reduced like this."""
    if not parameters:
        raise ValueError("parameters must have one that needs a gradient, got none; is the model frozen?")
    if cap is not None and not cap > 0:
        raise ValueError(f"bucket_cap_mb must be above 0, got {cap}; None reduces everything at once")
    if passes < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1, got {passes}")
    if in_place and scaler is not None:
        raise ValueError("in_place must be False with a scaler, whose scale the residual must not have, got True")


class Bucket:
    """The gradients of some parameters on their way: taken up as they become final, reduced, and handed back.

    Args:
        parameters: of one dtype, on one device.
        make_reducer: given their shapes.
        in_place: gradients are accumulated in the residual's own memory, see `SparseAllreduce`; means come back in
            another buffer. Else one buffer serves for both, beside the residual.
        divisor: what sums are divided by.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        make_reducer: Callable[[list[tuple[int, ...]]], SparseAllreduce],
        in_place: bool,
        divisor: float,
    ) -> None:
        self.parameters = list(parameters)
        self.reducer = make_reducer([tuple(p.shape) for p in parameters])
        self.in_place, self.divisor = in_place, divisor
        self.handle: Handle[Any] | None = None
        self.seen = np.zeros(len(self.parameters), np.uint8)  # of gradients of this rank: UNSEEN, DENSE or SPARSE
        self.kinds = self.seen.copy()  # of those of any rank
        self._sizes = [p.numel() for p in parameters]
        first = parameters[0]
        self.flat = torch.zeros(sum(self._sizes), dtype=first.dtype, device=first.device)  # (n,) what is reduced
        self.mean = torch.zeros_like(self.flat) if in_place else self.flat  # (n,) what comes back
        self._views, self._mean_views = self._split(self.flat), self._split(self.mean)
        self._written: Tensor | None = None  # where the mean has entries; None: anywhere
        self._version = -1  # of the mean when it was written; others may change it
        if in_place:
            self.reducer.adopt(self.flat)
        if in_place:
            self.attach()

    def attach(self) -> None:
        """Have backward passes accumulate into the buffer that is reduced."""
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.grad = view

    def detach(self) -> None:
        """Have parameters without gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def take(self, number: int, scale: float = 1.0) -> None:
        """Take up, divided by ``scale``, what the ``.grad`` of a parameter holds; None is zero."""
        parameter, view = self.parameters[number], self._views[number]
        gradient = parameter.grad
        if gradient is not None:
            self.seen[number] = max(self.seen[number], SPARSE if gradient.is_sparse else DENSE)
        if gradient is None:
            if not self.in_place:
                view.zero_()
        elif gradient is not view:
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            if self.in_place:
                view.add_(gradient)
            elif scale == 1.0:
                view.copy_(gradient)
            else:
                torch.div(gradient, scale, out=view)
            parameter.grad = view
        elif scale != 1.0:
            view.div_(scale)

    def start(self, check: bool, density: float | None) -> Handle[Any]:
        """Begin to reduce what was taken up."""
        self.handle = self.reducer.start(self.flat, check, density=density)
        return self.handle

    @torch.no_grad()
    def finish(self, scale: float = 1.0) -> SparseVector | Tensor:
        """Wait for the sum and return it; make ``.grad`` of the parameters its mean times ``scale``.

        Raises:
            Exception: what `SparseAllreduce.step` raises.
        """
        assert self.handle is not None, "finish follows start"
        handle, self.handle = self.handle, None
        total = handle.wait()
        self._write(total, self.divisor / scale)
        for number, parameter in enumerate(self.parameters):
            parameter.grad = self._gradient(number) if parameter.requires_grad else None
        return total

    @torch.no_grad()
    def fail(self) -> None:
        """Make ``.grad`` of the parameters NaN: what a loss scaler is to see of gradients that must not be reduced."""
        self.mean.fill_(torch.nan)
        self._written = None
        for parameter, mean in zip(self.parameters, self._mean_views, strict=True):
            parameter.grad = mean if parameter.requires_grad else None

    def _write(self, total: SparseVector | Tensor, divisor: float) -> None:
        """Make the mean ``total / divisor``, zero where ``total`` has no entry."""
        if not isinstance(total, SparseVector):
            self.mean.copy_(total / divisor)
            self._written = None
            return
        if self._written is None or self.mean._version != self._version:
            self.mean.zero_()
        else:
            self.mean[self._written] = 0
        indices = total.indices.long()
        self.mean[indices] = (total.values / divisor).to(self.mean.dtype)
        self._written = indices if self.in_place else None  # else the next gradients come to the same buffer
        self._version = self.mean._version

    def _gradient(self, number: int) -> Tensor:
        """The mean gradient of a parameter, as a sparse tensor where gradients come as such."""
        mean = self._mean_views[number]
        if self.kinds[number] != SPARSE:
            return mean
        rows = mean.flatten(1).any(1).nonzero().flatten()
        return torch.sparse_coo_tensor(rows[None], mean[rows], mean.shape, check_invariants=False, is_coalesced=True)

    def _split(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split(self._sizes)
        return [part.view(p.shape) for p, part in zip(self.parameters, parts, strict=True)]
