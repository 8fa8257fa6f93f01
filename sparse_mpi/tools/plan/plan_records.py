"""Convert frozen dataclasses and named tuples to JSON and back by their type hints, strictly, with clear errors."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

WIDTH = 120
EXPECTED: dict[Any, str] = {  # the words for a type in errors
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}


def encode(kind: Any, value: Any) -> Any:
    """Turn ``value``, of type ``kind``, into dicts, lists, strings and numbers; equal values give equal text."""
    if names := _names(kind):
        hints = get_type_hints(kind)
        return {name: encode(hints[name], getattr(value, name)) for name in names}
    if get_origin(kind) is tuple:
        return [encode(each, item) for each, item in zip(_kinds(kind, len(value)), value, strict=True)]
    return kind(value)


def decode(kind: Any, data: Any, where: str) -> Any:
    """Invert `encode`: return the value of type ``kind`` that ``data`` was made of.

    Args:
        kind: a dataclass, a named tuple, a tuple of these, str, bool, int or float.
        data: what JSON gave.
        where: name of ``data`` in errors.

    Raises:
        ValueError: a field is missing, unknown or of another type; the message says where.
    """
    if names := _names(kind):
        hints = get_type_hints(kind)
        data = _expect(dict, data, where)
        if missing := [name for name in names if name not in data]:
            raise ValueError(f"{where} lacks {', '.join(missing)}")
        if unknown := sorted(set(data) - set(names)):
            raise ValueError(f"{where} has unknown {', '.join(unknown)}")
        return kind(**{name: decode(hints[name], data[name], f"{where}.{name}") for name in names})
    if get_origin(kind) is tuple:
        data = _expect(list, data, where)
        kinds = _kinds(kind, len(data))
        if len(kinds) != len(data):
            raise ValueError(f"{where} must have {len(kinds)} items, got {len(data)}")
        return tuple(decode(k, item, f"{where}[{i}]") for i, (k, item) in enumerate(zip(kinds, data, strict=True)))
    return _expect(kind, data, where)


def render(data: Any, indent: int = 0, before: int = 0) -> str:
    """Return JSON for human readers, in which whatever fits into a line stays in it.

    Args:
        data: dicts, lists, strings and numbers.
        indent: spaces at the beginning of the line that ``data`` is in.
        before: characters of that line that are taken already.
    """
    line = json.dumps(data, allow_nan=False)
    if indent + before + len(line) <= WIDTH or not isinstance(data, (dict, list)):
        return line
    inner, close = "\n" + " " * (indent + 1), "\n" + " " * indent
    if isinstance(data, dict):
        items = [f"{json.dumps(name)}: {render(item, indent + 1, len(name) + 5)}" for name, item in data.items()]
        return "{" + inner + f",{inner}".join(items) + close + "}"
    return "[" + inner + f",{inner}".join(render(item, indent + 1, 1) for item in data) + close + "]"


def _kinds(kind: Any, length: int) -> tuple[Any, ...]:
    """Return the types of the items of a tuple; ``tuple[int, ...]`` has ``length`` items."""
    kinds = get_args(kind)
    return kinds[:1] * length if kinds[1:] == (...,) else kinds


def _names(kind: Any) -> tuple[str, ...]:
    """Return the field names of a dataclass or a named tuple, none for any other type."""
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    return getattr(kind, "_fields", ())


def _expect(kind: Any, data: Any, where: str) -> Any:
    """Return ``data`` if it is of that type; whole numbers count as numbers, true and false do not."""
    accepted = (int, float) if kind is float else kind
    if not isinstance(data, accepted) or (isinstance(data, bool) and kind is not bool):
        raise ValueError(f"{where} must be {EXPECTED[kind]}, got {json.dumps(data)[:40]}")
    if kind is not float:
        return data
    try:
        number = float(data)
    except OverflowError:  # a whole number of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{where} must be finite, got {str(data)[:40]}")
    return number
