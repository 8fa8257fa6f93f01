"""Notice weights that are loaded into the model of a `DiLoCo`: `LoadedWeights`."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor, nn

ASSIGNS = (
    "load_state_dict must copy values into the parameters that DiLoCo's optimizers move, got assign; leave that "
    "out, or load before the optimizers are made"
)


class _LoadHook:
    """torch's hook before a module loads a state; keeps nobody alive, and calls nobody in a copy of the module."""

    def __init__(self, loading: Callable[..., None] | None = None) -> None:
        self._loading = None if loading is None else WeakMethod(loading)

    def __call__(self, module: nn.Module, state: Mapping[str, Any], prefix: str, about: Any, *_: object) -> None:
        loading = None if self._loading is None else self._loading()
        if loading is not None:
            loading(module, state, prefix, bool(about.get("assign_to_params_buffers")))

    def __reduce__(self) -> tuple[Any, ...]:
        return _LoadHook, ()


class LoadedWeights:
    """Finds ``parameters`` that ``load_state_dict`` of ``model`` or of its modules has changed.

    Attributes:
        refused: reason why nothing may be loaded now, if so.
    """

    def __init__(self, model: nn.Module, parameters: Iterable[Tensor]) -> None:
        self.refused = ""
        self._known, self._before = set(parameters), dict[Tensor, int]()  # bits before the first load
        hook = _LoadHook(self._loading)  # public since torch 2.5
        self._handles = [module._register_load_state_dict_pre_hook(hook, True) for module in model.modules()]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def taken(self) -> set[Tensor]:
        """Return the parameters that loads have changed since the last call, but not weights swapped and put back."""
        before, self._before = self._before, {}
        return {parameter for parameter, bits in before.items() if crc_of(parameter) != bits}

    def _loading(self, module: nn.Module, state: Mapping[str, Any], prefix: str, assigns: bool) -> None:
        own = module.named_parameters(recurse=False, remove_duplicate=False)
        for parameter in [p for name, p in own if p in self._known and prefix + name in state]:
            if assigns or self.refused:
                raise RuntimeError(self.refused or ASSIGNS)
            if parameter not in self._before:
                self._before[parameter] = crc_of(parameter)


def crc_of(tensor: Tensor) -> int:
    return zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
