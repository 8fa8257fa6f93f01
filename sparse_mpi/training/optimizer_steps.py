"""Have an optimizer of torch step along reduced gradients by a rule, from torch's hooks around a step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from sparse_mpi.checks import present
from sparse_mpi.training.adam_steps import (
    ADAMS,
    ARRIVED,
    TRAVELLING,
    begin,
    check_adam,
    give_back,
    second_beta,
    without_moments,
)
from sparse_mpi.training.adam_vector import AdamVector
from sparse_mpi.training.clip_line import ClipLine
from sparse_mpi.training.grammar import LEFT
from sparse_mpi.training.hooks import nested
from sparse_mpi.training.named_gradients import GradientVector, NamedGradients
from sparse_mpi.training.optimizer_rule import ARRIVAL, Rule
from sparse_mpi.training.own_step import steps_as
from sparse_mpi.training.sgd_steps import along_gradients, without_momentum

LOGGER = logging.getLogger("sparse_mpi")
_STEPS: WeakKeyDictionary[Optimizer, OptimizerSteps] = WeakKeyDictionary()  # another one takes the place of the last


class OptimizerSteps:
    """Makes ``optimizer``, which stays the same object, step by ``rule``.

    SGD steps without the momentum that error feedback has applied. Weights with moments that make up for waiting move
    before torch's step, which skips them. A step along flushed residuals is without momentum and weight decay. A call
    of ``step`` counts once, however many classes it goes through. A later object for the same optimizer replaces this
    one.

    Args:
        optimizer: steps some or all reduced parameters.
        divisor: returns P for means, 1 for sums.
        ready: called when gradients are there, before each step and after each call of its closure, with a stack of
            what to undo behind the step.
        clip_line: recognises a clip of reduced gradients.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        rule: Rule,
        gradients: NamedGradients,
        *,
        divisor: Callable[[], float],
        ready: Callable[[ExitStack], None],
        clip_line: ClipLine,
    ) -> None:
        self._clip_line = clip_line
        self._rule, self._gradients = rule, gradients
        self._divisor, self._ready = divisor, ready
        self._restore = ExitStack()  # options to switch on again after a step
        self.steps = 0  # number of steps begun so far
        self._vectors: dict[GradientVector, AdamVector] = {}
        self._arrivals: list[Tensor | None] = []  # arrivals of each parameter, in a state that is about to be loaded
        if (before := _STEPS.get(optimizer)) is not None:
            before.remove()
        _STEPS[optimizer] = self
        self._handles = [
            # torch.compile calls them as they are
            optimizer.register_step_pre_hook(torch.compiler.disable(self._before)),
            optimizer.register_step_post_hook(torch.compiler.disable(self._after)),
            # Also where the optimizer itself has raised a checkpoint has its momentum
            optimizer.register_state_dict_pre_hook(lambda _: self._restore.close()),
            optimizer.register_load_state_dict_pre_hook(self._loading),
            optimizer.register_load_state_dict_post_hook(self._loaded),
        ]
        self.follow_betas(optimizer)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any] | None:
        if nested(optimizer):
            return None
        self.steps += 1
        closure = options.get("closure") if len(args) < 2 else args[1]
        if closure is None:
            self._prepare(optimizer)
            return None

        def reduced() -> Any:
            loss = closure()
            self._prepare(optimizer)
            # It decides by the loss, which must be that of all ranks for them to decide alike
            return self._loss_of_all(loss) if isinstance(optimizer, LBFGS) else loss

        return args[:1], options | {"closure": reduced}

    def _loss_of_all(self, loss: Any) -> Any:
        own = loss.detach() if isinstance(loss, Tensor) else loss
        ranks = present(self._gradients.ranks, "ranks meet before the first step")
        losses = ranks.ask(lambda comm: comm.allgather(np.array([float(own)]), control=True))
        of_all = float(losses.sum()) / self._divisor()
        return torch.full_like(own, of_all) if isinstance(own, Tensor) else of_all

    @torch.no_grad()
    def _prepare(self, optimizer: Optimizer) -> None:
        """Do the rule's part on gradients and weights, and switch it off in ``optimizer`` for its step."""
        self._restore.close()  # a step may have failed within the optimizer
        rule = self._rule
        with ExitStack() as switched_off:
            self._ready(switched_off)
            if any(vector.left(vector.parameters) for vector in self._gradients):
                raise RuntimeError(LEFT)
            if self._gradients.flushed:
                switched_off.enter_context(along_gradients(optimizer))
            elif rule.momentum is not None:
                late = {p for vector in self._gradients if vector.late for p in vector.parameters}
                switched_off.enter_context(without_momentum(optimizer, rule, late))
            if rule.mode in (ARRIVAL, TRAVELLING):
                switched_off.callback(give_back, self._move(optimizer))
                self.follow_betas(optimizer)
            self._gradients.flushed = False
            self._restore = switched_off.pop_all()

    def _after(self, optimizer: Optimizer, *_: object) -> None:
        if nested(optimizer):
            return
        self._restore.close()
        for vector in self._gradients if self._rule.momentum is not None else ():
            vector.stepped()

    def _move(self, optimizer: Optimizer) -> list[tuple[Tensor, Tensor]]:
        check_adam(optimizer, self._rule.mode)  # options may have changed
        groups = {p: group for group in optimizer.param_groups for p in group["params"]}
        for parameter in [p for p in groups if p.grad is not None and p.grad.is_sparse]:
            raise RuntimeError(
                f"{type(optimizer).__name__} must have dense gradients, got a sparse tensor of shape "
                f"{tuple(parameter.shape)}; make a DistributedOptimizer of torch.optim.SparseAdam for that one"
            )
        known, flushed, divisor = self._vectors, self._gradients.flushed, self._divisor()
        self._vectors = {vector: known.get(vector) or AdamVector(vector, optimizer) for vector in self._gradients}
        vectors, factors = list(self._vectors.values()), (1.0, 1.0)
        for own in vectors:
            own.collect(optimizer, groups)
        if self._rule.mode == TRAVELLING and not flushed:
            factors = self._clip_line.factors(vectors, divisor)
        aside = [pair for own in vectors for pair in own.move(optimizer, groups, divisor, flushed, factors)]
        if not aside and not any(float(group["lr"]) for group in optimizer.param_groups):
            # So torch's checkpoints step along zeros, before the first reduction, for a state
            return begin(optimizer, self._gradients.parameters.values())
        return aside

    def follow_betas(self, optimizer: Optimizer) -> None:
        """Have second moments that travel follow the betas of ``optimizer``, which may change."""
        if self._rule.mode != TRAVELLING:
            return
        least = self._rule.least_beta
        betas = {p: second_beta(group, least) for group in optimizer.param_groups for p in group["params"]}
        for vector in self._gradients:
            if (moment := vector.reducer.second_moment) is not None:
                before = zip(vector.parameters, moment.betas, strict=True)
                moment.betas = [betas.get(parameter, beta) for parameter, beta in before]

    def _loading(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any] | None:
        adam = steps_as(optimizer, *ADAMS[TRAVELLING])
        found = without_moments(state, self._rule.mode) if adam else None
        ranks = self._gradients.ranks
        if found is not None and (ranks is None or ranks.comm.rank == 0):
            LOGGER.warning("sparse_mpi: moments of %s begin anew: the loaded ones are of another kind", optimizer)
        used = state if found is None else found
        keys = [key for group in used["param_groups"] for key in group["params"]]
        self._arrivals = [used["state"].get(key, {}).get(ARRIVED) for key in keys]
        return found

    def _loaded(self, optimizer: Optimizer) -> None:
        """Restore numbers of steps, to which torch has given the type of the weights."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter, steps in zip(parameters, self._arrivals, strict=True):
            if isinstance(steps, Tensor):
                optimizer.state[parameter][ARRIVED] = steps.to(parameter.device, torch.int32, copy=True)
        self._arrivals = []


def steps_along(parameter: Tensor) -> int:
    """Return the number of steps so far of all reducing optimizers along a ``parameter``."""
    pairs = [(optimizer.param_groups, steps) for optimizer, steps in _STEPS.items()]
    return sum(
        steps.steps for groups, steps in pairs if any(parameter is p for group in groups for p in group["params"])
    )
