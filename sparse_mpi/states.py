"""Values that fields of a state may hold, declared by `ranged`: one rule checks all when a state is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from sparse_mpi.arrays import describe

WHOLE = "load what state_dict() returned, whole"
RANGE = "range"  # the key of a field's `Range` in its metadata
TYPES = {"f": (np.float32, np.float64), "i": (np.int32, np.int64)}  # arrays of a state, by kind
KINDS: Mapping[type, str] = {bool: "True or False", int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Range:
    """The values of a field.

    Args:
        interval: values allowed, as in `checks.check_range`, with names of `bounds_of` too; "": all, NaN included.
        lengths: lengths that an array may have, names of `bounds_of`; (): any.
        rising: True: the elements of an array ascend strictly.
        replicated: True: all ranks that reduce together have the same value.
    """

    interval: str = ""
    lengths: tuple[str, ...] = ()
    rising: bool = False
    replicated: bool = False

    def checked(self, where: str, value: Any, like: object, bounds: Mapping[str, int]) -> Any:
        """Return a copy of ``value``, to replace ``like``; TypeError or ValueError names it ``where``."""
        if isinstance(like, np.ndarray):
            self.check_array(where, value, like.dtype.kind, bounds)
            self._check_numbers(where, value[[value.argmin(), value.argmax()]].tolist() if len(value) else [], bounds)
            return value.astype(np.result_type(value, like)) if value.dtype.kind == "i" else value.copy()
        if isinstance(like, list):
            if not isinstance(value, list) or len(value) != len(like):
                raise ValueError(f"{where} must be a list of {len(like)}, got {shown(value)}; {WHOLE}")
            pairs = enumerate(zip(value, like, strict=True))
            return [self.checked(f"{where}[{number}]", *pair, bounds) for number, pair in pairs]
        value = value.item() if isinstance(value, np.generic) else value
        kind = type(like) if type(like) in KINDS else int  # a number still on a device, as `Later`
        if type(value) is not kind and (kind, type(value)) != (float, int):
            raise TypeError(f"{where} must be {KINDS[kind]}, got {shown(value)}; {WHOLE}")
        self._check_numbers(where, [value], bounds)
        return float(value) if kind is float else value

    def check_array(self, where: str, value: Any, kind: str, bounds: Mapping[str, int]) -> None:
        wanted = sorted({bounds[name] for name in self.lengths})
        good = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype in TYPES[kind]
        if not good or (wanted and len(value) not in wanted):
            types = " or ".join(np.dtype(each).name for each in TYPES[kind])
            lengths = " or ".join(map(str, wanted)) + " " if wanted else ""
            raise ValueError(f"{where} must be an array of {lengths}numbers, {types}, got {describe(value)}; {WHOLE}")
        if self.rising and not (value[1:] > value[:-1]).all():
            raise ValueError(f"{where} must ascend, got {value.tolist()[:8]}; {WHOLE}")

    def _check_numbers(self, where: str, values: list[float], bounds: Mapping[str, int]) -> None:
        if not self.interval:
            return
        low, high = (_end(name, bounds) for name in self.interval[1:-1].split(", "))
        for value in values:
            above = value >= low if self.interval[0] == "[" else value > low
            if not (above and (value <= high if self.interval[-1] == "]" else value < high)):
                interval = f"{self.interval[0]}{low}, {high}{self.interval[-1]}"
                raise ValueError(f"{where} must be in {interval}, got {shown(value)}; {WHOLE}")


ANY = Range()


def ranged(
    interval: str = "",
    default: object = MISSING,
    *,
    make: Callable[[], object] | None = None,
    lengths: tuple[str, ...] = (),
    rising: bool = False,
    replicated: bool = False,
) -> Any:
    """Return a field of a state with its `Range`; ``make``, if given, makes the default."""
    metadata = {RANGE: Range(interval, lengths, rising, replicated)}
    return field(default=default, metadata=metadata) if make is None else field(default_factory=make, metadata=metadata)


def range_of(one: Field[object]) -> Range:
    found: Range = one.metadata.get(RANGE, ANY)
    return found


def bounds_of(size: int, ranks: int, dtype: str | None) -> dict[str, int]:
    """Return the numbers that ranges name, for ``size`` elements on ``ranks`` ranks, acc of ``dtype``."""
    return {
        "0": 0,
        "n": size,
        "P": ranks,
        "P + 1": ranks + 1,
        "n / P": -(-size // ranks),  # elements that a rank owns, at most
        "bits": 2**63 if dtype == "float64" else 2**31,  # least number above the magnitude bits of all numbers
        "many": 2**63,
    }


def replicated(state: object, where: str, without: str = "", whole: bool = False) -> Iterator[tuple[str, object]]:
    """Yield path and value of each replicated leaf of ``state``, but for fields called ``without``.

    With ``whole``, all leaves are replicated.
    """
    if isinstance(state, tuple) and any(map(is_dataclass, state)):
        for number, part in enumerate(state):
            yield from replicated(part, f"{where}[{number}]", without, whole)
    elif is_dataclass(state):
        for one in fields(state):
            if one.name != without:
                alike = whole or range_of(one).replicated
                yield from replicated(getattr(state, one.name), f"{where}[{one.name!r}]", without, alike)
    elif whole:
        yield where, state


def shown(value: object) -> str:
    """Return ``value`` for an error, cut to 200 characters."""
    try:
        text = repr(value)
    except ValueError:  # repr refuses integers of thousands of digits
        return f"a {type(value).__name__} that is too long to show"
    return text if len(text) <= 200 else f"{text[:200]}..."


def _end(name: str, bounds: Mapping[str, int]) -> float:
    sign, plain = (-1, name[1:]) if name[0] == "-" else (1, name)
    return sign * (bounds[plain] if plain in bounds else float(plain))
