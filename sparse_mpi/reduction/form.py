"""The form of a state: type and shape of every item, saved beside it, so that damage is detected before loading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

FORM = "form"  # the key that `sealed` adds
NOTHING = "nothing"
WHOLE = "load what state_dict() returned, whole"
EARLIER = "if sparse_mpi 0.3 wrote it, load and save it once with sparse_mpi 0.4"


def sealed(state: dict[str, Any]) -> dict[str, Any]:
    """Return ``state`` with its form, by which `check_form` finds damage."""
    return state | {FORM: dict(_nodes(state, ""))}


def check_form(state: Any, argument: str = "state") -> None:
    check_mapping(state, argument)
    if FORM not in state:
        raise ValueError(
            f"{argument} must have {FORM!r}, got {sorted(map(str, state))}; one that was written by sparse_mpi 0.2 or "
            "earlier: load and save it once with sparse_mpi 0.3, then once with 0.4"
        )
    expected = state[FORM]
    if not isinstance(expected, Mapping) or not all(isinstance(form, str) for form in expected.values()):
        raise TypeError(f"{argument}[{FORM!r}] must be a dict of texts, got {expected!r}; {WHOLE}")
    found = dict(_nodes(state, ""))
    # A node comes before its content, so that the error names the outermost damage
    for path, form in expected.items():
        if found.get(path, NOTHING) != form:
            raise ValueError(
                f"{argument}{path} must be {form} as it was saved, got {found.get(path, NOTHING)}; {WHOLE}"
            )


def check_mapping(value: object, argument: str) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{argument} must be a dict, got {_kind(value)}; {WHOLE}")


def check_list(value: object, argument: str) -> None:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{argument} must be a list, got {_kind(value)}; {WHOLE}")


def equal(a: object, b: object) -> bool:
    try:
        return bool(a == b)
    except ValueError:  # raised by a comparison with an array
        return False


def _nodes(node: object, path: str) -> Iterator[tuple[str, str]]:
    if path:
        yield path, _kind(node)
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key != FORM:  # which does not describe itself
                yield from _nodes(value, f"{path}[{key!r}]")
    elif isinstance(node, (list, tuple)):
        for number, value in enumerate(node):
            yield from _nodes(value, f"{path}[{number}]")


def _kind(node: object) -> str:
    if isinstance(node, np.ndarray):
        return f"{node.dtype} {node.shape}"
    if isinstance(node, (list, tuple)):
        return f"{type(node).__name__} of {len(node)}"
    # Numbers of NumPy and of Python are of one kind, for saving may turn one into the other
    return type(node.item() if isinstance(node, np.generic) else node).__name__
