"""A ``torch.amp.GradScaler``, and an optimizer whose gradients are reduced in its steps: `LossScale`."""

from __future__ import annotations

from typing import Any
from weakref import ref

from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer


class LossScale:
    """What a scaler does to the gradients of ``optimizer``; the same on all ranks once they are reduced.

    The scaler leaves the whole step to the optimizer, as to a fused one of torch: all ranks then reach it, also those
    whose own gradients have overflowed.
    """

    def __init__(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        self._optimizer, self._scaler = ref(optimizer), scaler
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]

    @property
    def known(self) -> bool:
        return self._scaler is not None

    def now(self) -> float:
        """Return the scale that gradients have now."""
        optimizer = self._optimizer()
        if self._scaler is None or optimizer is None:
            return 1.0
        # The scaler alone knows whether unscale_ was called
        stage = self._scaler._per_optimizer_states[id(optimizer)]["stage"]
        return 1.0 if stage is OptState.UNSCALED else float(self._scaler.get_scale())

    def check(self) -> None:
        """Raise TypeError if a scaler that is not known takes the step."""
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
        for parameter in [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]:
            if overflowed:
                parameter.grad = None
            elif scale is not None:
                parameter.grad.div_(scale)
        if overflowed:  # perhaps on another rank, which this one's scaler has not seen
            for tensor in self._scaler._found_inf_per_device(optimizer).values():
                tensor.fill_(1.0)
