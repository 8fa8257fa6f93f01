"""Which gradients have come, of what kind they are, and the hooks by which autograd tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from weakref import WeakMethod, finalize

from torch import Tensor
from torch.utils.hooks import RemovableHandle

UNSEEN, DENSE = 0, 1  # kinds of gradients: 1, and for a sparse tensor the number of its sparse dimensions more


def kind_of(gradient: Tensor | None) -> int:
    """Return the kind of a gradient; nn.Embedding and others may have sparse tensors."""
    if gradient is None:
        return UNSEEN
    return DENSE + gradient.sparse_dim() if gradient.is_sparse else DENSE


class Arrivals:
    """Which of some parameters' gradients have come since the last step, of ``passes`` backward passes each."""

    def __init__(self, parameters: Iterable[Tensor], passes: int) -> None:
        self._passes = passes
        self._awaited = dict.fromkeys(parameters, passes)  # backward passes that each must still see

    @property
    def any(self) -> bool:
        """Return True if a gradient has come that was not cleared."""
        return any(n < self._passes and parameter.grad is not None for parameter, n in self._awaited.items())

    @property
    def complete(self) -> bool:
        # A parameter that was frozen meanwhile gets no gradient any more: nobody waits for it
        return not any(awaited > 0 and parameter.requires_grad for parameter, awaited in self._awaited.items())

    @property
    def beyond(self) -> bool:
        """Return True if a gradient has come in more backward passes than were awaited."""
        return any(awaited < 0 for awaited in self._awaited.values())

    def expect(self, parameter: Tensor) -> None:
        self._awaited[parameter] = self._passes

    def count(self, parameter: Tensor) -> bool:
        """Count a backward pass, and return True if the gradient is complete with it."""
        self._awaited[parameter] -= 1
        return self._awaited[parameter] == 0

    def reset(self) -> None:
        self._awaited = dict.fromkeys(self._awaited, self._passes)


class Hooks:
    """What autograd calls when gradients are final: a method, whose object this does not keep alive."""

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
