"""Converters of command-line values, types for `argparse`: they raise ArgumentTypeError for bad ones."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

FIGURES = (".png", ".svg", ".pdf")


def integer(least: int) -> Callable[[str], int]:
    """Return a converter to integers of at least ``least``."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise ArgumentTypeError(f"must be an integer >= {least}, got {text}")
        return value

    return convert


def number(text: str) -> float:
    """Convert to a finite number of at least 0."""
    value = _float(text)
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"must be a number >= 0, got {text}")
    return value


def share(text: str) -> float:
    """Convert to a number in (0, 1]."""
    value = _float(text)
    if not 0 < value <= 1:
        raise ArgumentTypeError(f"must be in (0, 1], got {text}")
    return value


def norm(text: str) -> float:
    """Convert to a number above 0, which may be inf."""
    value = _float(text)
    if not value > 0:
        raise ArgumentTypeError(f"must be a number > 0, got {text}; inf clips nothing")
    return value


class Ramp(NamedTuple):
    """A density that falls from ``start`` to that of the rest of training in ``epochs``."""

    start: float
    epochs: float


def densities(text: str) -> int | tuple[float, ...] | Ramp:
    """Convert to a number of epochs, to a density for each of the first epochs, or to a density and when it is over."""
    if text.isdecimal():
        return int(text)
    start, at, epochs = text.partition("@")
    if at:
        return Ramp(share(start), norm(epochs))
    return tuple(share(part) for part in text.split(","))


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def figure(text: str) -> Path:
    """Convert to the path of a figure, whose suffix says the format."""
    file = Path(text)
    if file.suffix not in FIGURES:
        raise ArgumentTypeError(f"must end in one of {', '.join(FIGURES)}, got {text}")
    return file
