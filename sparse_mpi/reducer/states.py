"""States of a reducer on their way out and in: what makes them up, what they must agree in, how they add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from sparse_mpi import arrays
from sparse_mpi.arrays import Array, to_host


def settle(state: Any) -> None:
    """Wait for all work on the devices where arrays of ``state`` are: an array, a state, or a tuple of them."""
    if is_dataclass(state):
        state = tuple(getattr(state, field.name) for field in fields(state))
    if isinstance(state, tuple):
        for part in state:
            settle(part)
    else:
        arrays.synchronize_device(state)


def on_host(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a state as a dict, without arrays on a device: a ``dict_factory`` for ``asdict``."""
    return {name: to_host(value) for name, value in items}


def restore(template: Any, saved: Any) -> Any:
    """The inverse of ``asdict``: a state of ``template``'s type, nested states included."""
    if isinstance(template, tuple) and any(map(is_dataclass, template)):
        return tuple(restore(was, part) for was, part in zip(template, saved, strict=True))
    if not is_dataclass(template) or isinstance(template, type):
        return saved
    values = {field.name: restore(getattr(template, field.name), saved[field.name]) for field in fields(template)}
    return type(template)(**values)


def check_identity(state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raise ValueError unless ``state`` is of what ``identity`` says."""
    for key, expected in identity.items():
        if state.get(key) != expected:
            raise ValueError(
                f"state[{key!r}] must be {expected!r}, got {state.get(key)!r}; "
                "load it into a SparseAllreduce made with the arguments it was saved from"
            )


def added(states: Sequence[Mapping[str, Any]], name: str, size: int) -> Array:
    """The sum of an array ``(n,)`` of all states, in their order; of none, zeros ``(size,)`` float32."""
    return sum((state[name] for state in states[1:]), states[0][name]) if states else np.zeros(size, np.float32)
