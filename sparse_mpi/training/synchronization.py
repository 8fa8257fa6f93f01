"""The methods that `DistributedOptimizer` adds to an optimizer, and its `LossScale`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from sparse_mpi.sparse import SparseVector
from sparse_mpi.training.grammar import loss_scale
from sparse_mpi.training.parameters import parameters_of
from sparse_mpi.training.reduction import GradientReduction


class LossScale:
    """A scaler's work on the gradients of ``optimizer``; the same on all ranks once they are reduced.

    The scaler leaves the whole step to the optimizer, as to a fused one of torch: all ranks then reach it, also ranks
    whose own gradients have overflowed.
    """

    def __init__(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        self._optimizer, self._scaler = ref(optimizer), scaler
        vars(optimizer).update(_step_supports_amp_scaling=True)
        self._left: list[tuple[Tensor, Tensor]] = []  # gradients that a step leaves out
        optimizer.register_step_post_hook(lambda *_: self._give_back())

    def now(self) -> float:
        return loss_scale(self._scaler, self._optimizer())

    def found(self) -> bool:
        """Return True if the scaler has seen an overflow on this rank since its last update."""
        optimizer = self._optimizer()
        if self._scaler is None or optimizer is None:
            return False
        return any(map(bool, self._scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()))

    def check(self) -> None:
        """Raise TypeError if an unknown scaler takes the step."""
        if self._scaler is None and getattr(self._optimizer(), "found_inf", None) is not None:
            raise TypeError(
                "step must not be taken by a GradScaler that DistributedOptimizer does not know, whose scale residuals "
                "would have; give it as scaler=, or train in bfloat16"
            )

    def take_out(self, overflowed: bool) -> None:
        """Take the scale out of reduced gradients; the step is left out if any rank's have ``overflowed``."""
        optimizer: Any = self._optimizer()
        found = getattr(optimizer, "found_inf", None)
        if found is None or self._scaler is None:
            return
        scale, overflowed = optimizer.grad_scale, overflowed or bool(found)
        optimizer.grad_scale = optimizer.found_inf = None  # or else a fused optimizer does both once more
        reduced = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        seen = self._scaler._found_inf_per_device(optimizer)
        if reduced and not seen:  # this rank had no gradient of its own, and its update would be an error
            seen[reduced[0].device] = torch.zeros((), device=reduced[0].device)
        for parameter in reduced:
            if overflowed:
                self._left.append((parameter, parameter.grad))
                parameter.grad = None
            elif scale is not None:
                parameter.grad.div_(scale)
        if overflowed:  # perhaps on another rank, which this one's scaler has not seen
            for tensor in seen.values():
                tensor.fill_(1.0)

    def _give_back(self) -> None:
        for parameter, gradient in self._left:
            parameter.grad = gradient
        self._left.clear()


class Synchronization:
    """Reduces the gradients of an optimizer before it steps; its public methods become methods of that."""

    def __init__(self, optimizer: Optimizer, reduction: GradientReduction, scale: LossScale) -> None:
        self._optimizer, self._reduction, self._scale = ref(optimizer), reduction, scale
        self._synchronizes = True  # a step calls `synchronize`

    def synchronize(self) -> list[SparseVector[Tensor] | Tensor]:
        """Finish the reduction: ``.grad`` of every parameter becomes its mean (or sum) over the ranks. Collective.

        A step does this. Call it yourself if gradients are needed earlier, for clipping or a loss scaler; the next step
        takes them as they are.

        Returns, raises: see `GradientReduction.synchronize`.
        """
        return self._reduction.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make a step take the gradients as they are within this context: call `synchronize` before."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def flush(self) -> None:
        """Step once along the residuals of all ranks, which become 0. Collective.

        For the end of training, or before an evaluation that matters; costs a dense allreduce. This step is without
        weight decay, and torch's SGD takes it without momentum, which would apply late sums again.

        Raises:
            RuntimeError: gradients have come that are not reduced yet; raised on every rank.
            Exception: as `SparseAllreduce.flush` does.
        """
        self._reduction.flush()
        optimizer = self._optimizer()
        with self.skip_synchronize():
            if optimizer is not None:
                optimizer.step()

    def before_step(self) -> None:
        """Reduce, unless that is done or is to be skipped; called when the gradients are there."""
        self._scale.check()
        if not self._synchronizes:
            self._reduction.refuse_skipping()
        elif not self._idle():
            self.synchronize()
        self._scale.take_out(self._reduction.overflowed)
        self._reduction.stepped()

    def _idle(self) -> bool:
        """Return True if nothing has come and nothing can move: so torch's checkpoints make an optimizer's state."""
        optimizer = self._optimizer()
        groups = [] if optimizer is None else optimizer.param_groups
        if self._reduction.arrived or any(float(group.get("lr", 1.0)) for group in groups):
            return False
        gradients = [p.grad for p in parameters_of(optimizer) if p.requires_grad]
        return all(gradient is not None and not bool(gradient.any()) for gradient in gradients)
