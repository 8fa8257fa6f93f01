"""The form of a state: type, shape and checksum of every item, saved beside it to detect damage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from zlib import crc32

import numpy as np

from sparse_mpi.arrays import bytes_of
from sparse_mpi.states import WHOLE as WHOLE
from sparse_mpi.states import shown

FORM = "form"  # the key that `sealed` adds
NOTHING = "nothing"
CHECKED = ": "  # stands before a number, or the checksum of a text or an array
EARLIER = "if sparse_mpi 0.3 wrote it, load and save it once with sparse_mpi 0.4"


def sealed(state: dict[str, Any]) -> dict[str, Any]:
    return state | {FORM: dict(_nodes(state, "", seals=True))}


def check_form(state: Any, argument: str = "state") -> None:
    check_mapping(state, argument)
    if FORM not in state:
        raise ValueError(
            f"{argument} must have {FORM!r}, got {sorted(map(str, state))}; one that was written by sparse_mpi 0.2 or "
            "earlier: load and save it once with sparse_mpi 0.3, then once with 0.4"
        )
    expected = state[FORM]
    if not isinstance(expected, Mapping) or not all(isinstance(form, str) for form in expected.values()):
        raise TypeError(f"{argument}[{FORM!r}] must be a dict of texts, got {shown(expected)}; {WHOLE}")
    found = dict(_nodes(state, ""))
    # A node comes before its content, so that the error names the outermost damage
    for path, form in expected.items():
        own = found.get(path, NOTHING)
        # Up to 0.4 a form had no checksums
        if form not in (own, own.partition(CHECKED)[0]):
            raise ValueError(f"{argument}{path} must be {form} as it was saved, got {own}; {WHOLE}")


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


def _nodes(node: object, path: str, seals: bool = False) -> Iterator[tuple[str, str]]:
    """Yield path and form of each item of ``node``; with ``seals``, by the forms of states inside."""
    if path:
        yield path, f"{_kind(node)}{checksum(node)}"
    if isinstance(node, Mapping) and seals and path and FORM in node:
        yield from ((f"{path}{inner}", form) for inner, form in node[FORM].items())
    elif isinstance(node, Mapping):
        for key, value in node.items():
            if key != FORM:  # the form does not describe itself
                yield from _nodes(value, f"{path}[{key!r}]", seals)
    elif isinstance(node, (list, tuple)):
        for number, value in enumerate(node):
            yield from _nodes(value, f"{path}[{number}]", seals)


def _kind(node: object) -> str:
    if isinstance(node, np.ndarray):
        return f"{node.dtype} {node.shape}"
    if isinstance(node, (list, tuple)):
        return f"{type(node).__name__} of {len(node)}"
    # Numbers of NumPy and of Python are of one kind, for saving may turn one into the other
    return type(node.item() if isinstance(node, np.generic) else node).__name__


def checksum(node: object) -> str:
    """Return a number as text, or the checksum of a text or array, however saved; ``""`` for others."""
    node = node.item() if isinstance(node, np.generic) else node
    if isinstance(node, float) or (isinstance(node, int) and node.bit_length() <= 64):
        return f"{CHECKED}{node!r}"
    if isinstance(node, int):  # its text might be too long
        return f"{CHECKED}crc32 {crc32(hex(node).encode()):08x}"
    data = node.encode(errors="surrogatepass") if isinstance(node, str) else bytes_of(node)
    return "" if data is None else f"{CHECKED}crc32 {crc32(data):08x}"
