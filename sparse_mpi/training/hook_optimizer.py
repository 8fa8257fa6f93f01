"""The optimizer of a model whose gradients a hook of torch reduces: `HookOptimizer`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.utils.hooks import RemovableHandle

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.feedback import Feedback
from sparse_mpi.reduction.arguments import make_algorithm, usual_density
from sparse_mpi.reduction.settings import Settings, make_settings
from sparse_mpi.training.named_reducers import NamedReducers
from sparse_mpi.training.optimizer_momentum import (
    USUAL_DENSITY,
    MomentumState,
    along_gradients,
    default_mode,
    momentum_rule,
    without_momentum,
)
from sparse_mpi.training.parameters import mean_moment
from sparse_mpi.training.staleness_adam import ADAMS, TRAVELLING, move_along, second_beta, second_betas

# Of each optimizer what the last `HookOptimizer` has registered: another one takes its place
_HANDLES: WeakKeyDictionary[Optimizer, list[RemovableHandle]] = WeakKeyDictionary()


class HookSettings(NamedTuple):
    reducers: Settings  # of each, but for layout and k
    density: float
    mode: str  # who applies the optimizer's momentum, see `DistributedOptimizer`


def hook_settings(
    shapes: object,
    *,
    density: float | None,
    algorithm: str | Algorithm,
    feedback: str | Feedback,
    optimizer: Optimizer | None,
    options: Mapping[str, Any],
) -> HookSettings:
    """Return the settings of reducers for tensors of these ``shapes``, and of the optimizer, if any."""
    made: Algorithm = make_algorithm(algorithm, dict(options))
    share, mode = usual_density(made) if density is None else density, "local"
    if optimizer is not None and not isinstance(optimizer, (SGD, *ADAMS[TRAVELLING])):
        raise TypeError(
            f"optimizer must be torch's SGD, Adam, AdamW, NAdam or RMSprop, got {type(optimizer).__name__}; leave it "
            "out: others step along what the hook returns; of a ZeroRedundancyOptimizer pass .optim"
        )
    if isinstance(optimizer, SGD):
        mode = default_mode(optimizer, feedback, carries=False)
    elif optimizer is not None and share < 1:  # with everything sent Adam is as ever
        mode, share = TRAVELLING, USUAL_DENSITY if density is None else density
    rule = feedback if optimizer is None else momentum_rule(optimizer, feedback, mode, share)
    beta = second_beta(optimizer.param_groups[0]) if optimizer is not None and mode == TRAVELLING else None
    settings = make_settings(shapes, density=share, algorithm=made, feedback=rule, second_moment=beta)
    return HookSettings(settings, share, mode)


class HookOptimizer:
    """Makes an optimizer step along what a hook has reduced, as `DistributedOptimizer` does.

    SGD steps without the momentum that error feedback has applied; Adam's weights move by second moments that travel,
    and then their ``.grad`` is None. Closures are called as ever. One made of the same optimizer later takes its place.

    Args:
        optimizer: of the reduced parameters, or of a part of them.
        ranks: the number of those whose mean the gradients are; None: all of them.
        scaled: a loss scaler divides gradients by its scale before the step.

    Attributes:
        momentum: who applies it; told by the hook which sums are sparse.
        flushed: the gradients are all that was owed: the next step is without momentum and weight decay.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str,
        names: Mapping[Tensor, str],
        reducers: NamedReducers,
        ranks: int | None = None,
        scaled: bool = False,
    ) -> None:
        self._mode, self._reducers, self._ranks = mode, reducers, ranks
        self._parameters = {name: parameter for parameter, name in names.items()}
        self.momentum = MomentumState.of(optimizer, mode, reducers.settings.feedback)
        self._restore = ExitStack()  # of what is switched off during a step
        self.flushed: bool = False
        for handle in _HANDLES.pop(optimizer, ()):
            handle.remove()
        if mode != "local":
            _HANDLES[optimizer] = [
                optimizer.register_step_pre_hook(self._before),
                optimizer.register_step_post_hook(self._after),
                # Also where the optimizer itself has raised a checkpoint has its momentum
                optimizer.register_state_dict_pre_hook(lambda _: self._restore.close()),
            ]
            # With a scaler of its own it takes no mark of another one
            optimizer._step_supports_amp_scaling = not scaled  # type: ignore[attr-defined]

    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if getattr(optimizer, "found_inf", None) is not None:
            raise TypeError(
                "step must not be taken by a GradScaler that the hook does not know, whose scale residuals and moments "
                "would have; give it to the hook's state, train in bfloat16, or use DistributedOptimizer"
            )
        closure = options.get("closure") if len(args) < 2 else args[1]
        if closure is None:
            self._prepare(optimizer)
            return args, options

        def reduced() -> Any:
            loss = closure()
            self._prepare(optimizer)
            return loss

        return args[:1], {"closure": reduced}

    def _prepare(self, optimizer: Optimizer) -> None:
        """Do to gradients and weights what ``optimizer`` is not to do, and switch that off in it until `_after`."""
        self._restore.close()  # after a step that has failed within the optimizer
        with ExitStack() as switched_off:
            if self.flushed:
                switched_off.enter_context(along_gradients(optimizer))
            elif (taken := self.momentum.taken) is not None:
                applied, ahead = self.momentum.applied, self.momentum.looks_ahead
                switched_off.enter_context(without_momentum(optimizer, taken, applied, ahead))()
            if self._mode == TRAVELLING:
                self._move(optimizer)
            self.flushed = False
            self._restore = switched_off.pop_all()

    def _after(self, optimizer: Optimizer, args: object, options: object) -> None:
        self._restore.close()

    @torch.no_grad()
    def _move(self, optimizer: Optimizer) -> None:
        ranks = self._reducers.comm.size if self._ranks is None else self._ranks
        moments = [(names, reducer.second_moment) for names, reducer in self._reducers.known.items()]
        seconds: dict[Tensor, Tensor] = {}
        for names, moment in moments:
            like = self._parameters[names[0]]
            flat = None if moment is None else mean_moment(moment, ranks, like)
            for name, part in self._reducers.parts(names, flat) if flat is not None else ():
                seconds[self._parameters[name]] = part.view(self._reducers.shapes[name])
        move_along(optimizer, seconds)
        betas = second_betas(optimizer)
        for names, moment in moments:
            if moment is not None:  # a parameter of no group keeps its beta
                pairs = zip(names, moment.betas, strict=True)
                moment.betas = [betas.get(self._parameters[name], beta) for name, beta in pairs]
