"""The order of calls where hooks of torch reduce gradients and an optimizer steps: `StepOrder`."""

from __future__ import annotations

from contextlib import ExitStack
from weakref import ref

from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

from sparse_mpi.arrays import describe
from sparse_mpi.training.adam_steps import give_back, set_aside
from sparse_mpi.training.hooks import in_backward
from sparse_mpi.training.named_gradients import GradientVector, Names, parameters_of

CHANGED = (
    "sparse_mpi: gradients change between backward() and step(), so that reductions begin in the step from now on; "
    "clip_norm= clips without that, and reduction.close() and open() go around a pass for another optimizer"
)
NOT_FINITE = "sparse_mpi: a gradient of some rank has NaN or Inf: all ranks leave this step out, %d so far"
LEFT = (
    "gradients must be cleared between a step and the next backward() or step() where error feedback has taken SGD's "
    "momentum over, because they hold the whole update then; call zero_grad(), or use momentum='local'"
)
UNREDUCED = (
    "gradients must not wait to be reduced, or to be stepped along, when the residual is flushed; call step() first, "
    "or clear them"
)
SKIPPED = (
    "gradients must be reduced before a step within skip_synchronize(), or each rank would step along its own; call "
    "synchronize() first, or step() outside of it"
)
TWICE = (
    "gradients that synchronize() has reduced must be stepped along before others come; call step() after it (behind "
    "zero_grad() it moves nothing), or reduction.stepped() if you move the weights; for gradients that are cleared "
    "without a step, as of a GAN, leave synchronize() out"
)


def scaler_in_use(scaler: GradScaler | None) -> GradScaler | None:
    """Return ``scaler`` if it is enabled; TypeError if it is not a `GradScaler`."""
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise TypeError(f"scaler must be a torch.amp.GradScaler or None, got {describe(scaler)}")
    return scaler if scaler is not None and scaler.is_enabled() else None


def loss_scale(scaler: GradScaler | None, optimizer: Optimizer | None) -> float:
    """Return the scale of gradients that ``scaler`` has yet to take out for ``optimizer``, or 1."""
    if scaler is None or scaler._scale is None:  # not used on this rank
        return 1.0
    # The scaler alone knows whether unscale_ was called since its last update
    stage = None if optimizer is None else scaler._per_optimizer_states[id(optimizer)]["stage"]
    return 1.0 if stage is OptState.UNSCALED else float(scaler.get_scale())


class StepOrder:
    """One backward pass that reduces, then a step: momentum applied by error feedback moves on with each reduction.

    In `Rule.mode` "local" several passes may reduce before a step, as in torch. Without a known ``optimizer`` (None)
    nothing is checked; a step by another scaler than ``scaler`` is an error.
    """

    def __init__(self, optimizer: Optimizer | None, mode: str, scaler: GradScaler | None = None) -> None:
        self._optimizer = None if optimizer is None else ref(optimizer)
        self._mode, self._scaler = mode, scaler
        self._scale = 0.0  # loss scale at the last reduction
        self.left_out = False  # the last gradients were not finite on some rank, and the step is left out
        self._waiting: set[str] = set()  # parameters whose gradients were reduced since the last step
        self._idle: set[Names] = set()  # vectors that a rank without inputs reduces, in join of DDP
        if optimizer is not None:
            # Without its own scaler it takes the marks of any, which `stepped` sees
            vars(optimizer).update(_step_supports_amp_scaling=scaler is None)

    def check(self, vector: GradientVector, gradient: Tensor, left: bool = False) -> None:
        """Have all ranks raise RuntimeError in this reduction if a step must come first, or an update is ``left``."""
        # Within `join` a rank without inputs reduces zeros, outside of a backward pass, and takes no steps
        if not in_backward() and not bool(gradient.any()):
            self._idle.add(vector.names)
            return
        self._idle.discard(vector.names)
        if self._mode != "local" and not self._pending().isdisjoint(vector.names):
            vector.reducer.engine.objection = RuntimeError(
                f"backward must reduce once before a step with momentum={self._mode!r}, which moves on with each "
                "reduction, got a second pass; make all passes but the last within model.no_sync(), or with FSDP2 "
                "after model.set_requires_gradient_sync(False), or use momentum='local'"
            )
        elif left:
            vector.reducer.engine.objection = RuntimeError(LEFT)

    @property
    def scaled(self) -> bool:
        return self._scaler is not None

    def loss_scale(self) -> float:
        return loss_scale(self._scaler, None if self._optimizer is None else self._optimizer())

    def check_flush(self) -> None:
        if self._pending():
            raise RuntimeError(
                "flush must come between two steps, got gradients that were reduced and not stepped along; call step()"
            )

    def reduced(self, *vectors: GradientVector) -> None:
        self.left_out = False
        if self._optimizer is not None:
            self._waiting.update(name for v in vectors if v.names not in self._idle for name in v.names)
            self._scale = loss_scale(self._scaler, None)

    def stepped(self, after: ExitStack) -> None:
        """Take note of a step; one left out has no gradients until ``after``. TypeError for an unknown scaler."""
        optimizer = None if self._optimizer is None else self._optimizer()
        if getattr(optimizer, "found_inf", None) is not None:
            raise TypeError(
                "step must not be taken by a GradScaler that the hook does not know, whose scale residuals and moments "
                "would have; give it to the hook's state, train in bfloat16, or use DistributedOptimizer"
            )
        if self.left_out and optimizer is not None:
            after.callback(give_back, set_aside(parameters_of(optimizer)))
        self.left_out = False
        self._waiting.clear()

    def _pending(self) -> set[str]:
        # A scaler leaves a step out where a sum has overflowed, and lowers its scale then
        if self._waiting and loss_scale(self._scaler, None) < self._scale:
            self._waiting.clear()
        return self._waiting
