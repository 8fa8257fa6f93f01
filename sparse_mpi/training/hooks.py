"""Kinds of gradients, autograd's hooks on final ones, and torch's on an optimizer's step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from weakref import WeakMethod, finalize

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

# What runs torch's hooks around the `step` of a class
_HOOKED = Optimizer.profile_hook_step(lambda self: None).__code__
UNSEEN, DENSE = 0, 1  # kinds of gradients: 1, and for a sparse tensor the number of its sparse dimensions more


def kind_of(gradient: Tensor | None) -> int:
    """Return the kind of a gradient; nn.Embedding and others may have sparse tensors."""
    if gradient is None:
        return UNSEEN
    return DENSE + gradient.sparse_dim() if gradient.is_sparse else DENSE


def bits_of(gradient: Tensor) -> Tensor:
    """Return a number that changes with the bits of a gradient, however they are changed."""
    values = (gradient._values() if gradient.is_sparse else gradient).detach()
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    return values.contiguous().view(kind).sum(dtype=torch.int64)


def in_backward() -> bool:
    """Tell if a backward pass is under way, also without a graph of its own."""
    return torch._C._current_graph_task_id() != -1


def nested(optimizer: Optimizer) -> bool:
    """Tell if this is a hook of an inner ``step`` of ``optimizer``, which another of its classes calls by ``super()``.

    torch runs an instance's hooks around the ``step`` of each class. The stack of calls decides, as an error leaves no
    trace there.
    """
    frame: FrameType | None = sys._getframe(1)
    entries = 0
    while frame is not None and entries < 2:
        entries += frame.f_code is _HOOKED and frame.f_locals["self"] is optimizer
        frame = frame.f_back
    return entries > 1


class Hooks:
    """Calls a method when a gradient is final, without keeping the method's object alive."""

    def __init__(self, arrived: Callable[[Tensor], None]) -> None:
        self._arrived = WeakMethod(arrived)
        self._handles: dict[Tensor, RemovableHandle] = {}
        # When this is gone its hooks go too: the finalizer holds their handles, and not this
        finalize(self, _remove, self._handles)

    def add(self, parameter: Tensor) -> None:
        if parameter not in self._handles:
            # A hook that held this would keep it alive for as long as the parameter
            weak = self._arrived

            def hook(parameter: Tensor) -> None:
                if (arrived := weak()) is not None:
                    arrived(parameter)

            self._handles[parameter] = parameter.register_post_accumulate_grad_hook(hook)

    def remove(self) -> None:
        _remove(self._handles)


def _remove(handles: dict[Tensor, RemovableHandle]) -> None:
    for handle in handles.values():
        handle.remove()
    handles.clear()
