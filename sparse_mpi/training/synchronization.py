"""The methods that `DistributedOptimizer` adds to an optimizer, and its `LossScale`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from sparse_mpi.sparse import SparseVector
from sparse_mpi.training.adam_steps import give_back, set_aside
from sparse_mpi.training.grammar import loss_scale
from sparse_mpi.training.named_gradients import parameters_of
from sparse_mpi.training.reduction import GradientReduction


class LossScale:
    """A scaler's work on the gradients of ``optimizer``; the same on all ranks once they are reduced.

    The scaler leaves the whole step to the optimizer, as to torch's fused ones: ranks with overflowed gradients reach
    it, too.
    """

    def __init__(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        self._optimizer, self._scaler = ref(optimizer), scaler
        vars(optimizer).update(_step_supports_amp_scaling=True)

    def now(self) -> float:
        return loss_scale(self._scaler, self._optimizer())

    def found(self) -> bool:
        """Tell if the scaler has seen an overflow on this rank since its last update."""
        optimizer = self._optimizer()
        if self._scaler is None or optimizer is None:
            return False
        return any(map(bool, self._scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()))

    def check(self) -> None:
        if self._scaler is None and getattr(self._optimizer(), "found_inf", None) is not None:
            raise TypeError(
                "step must not be taken by a GradScaler that DistributedOptimizer does not know, whose scale residuals "
                "would have; give it as scaler=, or train in bfloat16"
            )

    def take_out(self, overflowed: bool, after: ExitStack, flushed: bool) -> None:
        """Take the scale out of reduced gradients; the step is left out if any rank's have ``overflowed``.

        ``after`` gives gradients back. A rank without inputs may call ``step`` without the scaler. ``flushed``
        gradients have no scale.
        """
        optimizer: Any = self._optimizer()
        reduced = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        found, seen = getattr(optimizer, "found_inf", None), {}
        scale = None if self._scaler is None else self.now() if found is None else optimizer.grad_scale
        if found is not None and self._scaler is not None:
            overflowed = overflowed or bool(found)
            optimizer.grad_scale = optimizer.found_inf = None  # a fused optimizer would do both once more
            seen = self._scaler._found_inf_per_device(optimizer)
            if reduced and not seen:  # this rank had no gradient of its own, and its update would be an error
                seen[reduced[0].device] = torch.zeros((), device=reduced[0].device)
        if overflowed:  # perhaps on another rank, which this one's scaler has not seen
            after.callback(give_back, set_aside(reduced))
            for tensor in seen.values():
                tensor.fill_(1.0)
        elif scale is not None and not flushed and reduced:
            torch._foreach_div_([parameter.grad for parameter in reduced], scale)


class Synchronization:
    """Reduces the gradients of an optimizer before it steps; its public methods become the optimizer's."""

    def __init__(self, optimizer: Optimizer, reduction: GradientReduction, scale: LossScale) -> None:
        self._optimizer, self._reduction, self._scale = ref(optimizer), reduction, scale
        self._synchronizes = True  # a step calls `synchronize`

    def synchronize(self) -> list[SparseVector[Tensor] | Tensor]:
        """Finish the reduction: ``.grad`` of every parameter becomes its mean or sum over the ranks. Collective.

        A step does this. Call it where gradients are needed earlier, as for clipping; the next step takes them as they
        are.

        Returns, raises: see `GradientReduction.synchronize`.
        """
        return self._reduction.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Have a step take gradients as they are in this context: call `synchronize` before."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def before_step(self, after: ExitStack) -> None:
        """Reduce, unless that is done or to be skipped.

        ``after`` undoes behind the step what is for it alone.
        """
        self._scale.check()
        if not self._synchronizes:
            self._reduction.refuse_skipping()
        elif not self._idle():
            self.synchronize()
        self._scale.take_out(self._reduction.bucket_pass.overflowed, after, self._reduction.gradients.flushed)
        self._reduction.stepped()

    def _idle(self) -> bool:
        """Tell if nothing has come and nothing can move: so torch's checkpoints make an optimizer's state."""
        optimizer = self._optimizer()
        groups = [] if optimizer is None else optimizer.param_groups
        if self._reduction.bucket_pass.arrived or any(float(group.get("lr", 1.0)) for group in groups):
            return False
        # Zeros that are new: those of a rank without inputs were cleared where they are reduced
        gradients = [p.grad for p in parameters_of(optimizer) if p.requires_grad]
        return all(g is not None and g._base is None and not bool(g.any()) for g in gradients)
