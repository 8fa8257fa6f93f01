"""In which order gradients are reduced and an optimizer steps, where hooks of torch reduce in backward passes: `StepOrder`."""

from __future__ import annotations

from weakref import ref

from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from sparse_mpi.training.named_gradients import GradientVector


class StepOrder:
    """One backward pass that reduces, then a step: momentum that was taken over moves on with each reduction.

    Where none was taken over several passes may reduce before a step, as in torch.

    Args:
        optimizer: the one that steps; None: it is not known, and nothing is checked.
        mode: who applies its momentum, a `Rule.mode`.
        scaler: of the loss; None: none is in use, and a step by one is an error.
    """

    def __init__(self, optimizer: Optimizer | None, mode: str, scaler: GradScaler | None = None) -> None:
        self._optimizer = None if optimizer is None else ref(optimizer)
        self._mode, self._scaler = mode, scaler
        self._scale = 0.0  # of the loss, when gradients were reduced last
        self._waiting: set[str] = set()  # parameters whose gradients were reduced since the last step
        if optimizer is not None:
            # Without a scaler of its own it takes the marks of any, which `stepped` finds
            vars(optimizer).update(_step_supports_amp_scaling=scaler is None)

    def check(self, vector: GradientVector, gradient: Tensor | None) -> None:
        """Have all ranks raise RuntimeError in the next reduction of ``vector`` if a step must come before it.

        Args:
            gradient: what is to be reduced ``(n,)``; None: a flush.
        """
        self._notice_skipped()
        if self._waiting.isdisjoint(vector.names):
            return
        if gradient is None:
            vector.reducer.engine.objection = RuntimeError(
                "flush must come between two steps, got gradients that were reduced and not stepped along; call step()"
            )
        # A rank that has run out of inputs reduces zeros in `model.join`, and takes no steps
        elif self._mode != "local" and bool(gradient.any()):
            vector.reducer.engine.objection = RuntimeError(
                f"backward must reduce once before a step where momentum={self._mode!r}, which moves on with each "
                "reduction, got a second one; make all passes but the last within model.no_sync(), with FSDP2 after "
                "model.set_requires_gradient_sync(False), or use momentum='local'"
            )

    def reduced(self, vector: GradientVector) -> None:
        """Take note that gradients have come which a step is to follow."""
        if self._optimizer is not None:
            self._waiting.update(vector.names)
            self._scale = self._scale_now()

    def stepped(self) -> None:
        """Take note of a step, or raise TypeError if it is taken by a scaler that is not known."""
        optimizer = None if self._optimizer is None else self._optimizer()
        if getattr(optimizer, "found_inf", None) is not None:
            raise TypeError(
                "step must not be taken by a GradScaler that the hook does not know, whose scale residuals and moments "
                "would have; give it to the hook's state, train in bfloat16, or use DistributedOptimizer"
            )
        self._waiting.clear()

    def _notice_skipped(self) -> None:
        # A scaler leaves a step out where a sum has overflowed, and lowers its scale then
        if self._waiting and self._scale_now() < self._scale:
            self._waiting.clear()

    def _scale_now(self) -> float:
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())
