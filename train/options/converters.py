"""What the words of a command line mean: types for `argparse`, which raise ArgumentTypeError."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

FIGURES = (".png", ".svg", ".pdf")


def integer(least: int) -> Callable[[str], int]:
    """What reads an integer of at least ``least``."""

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
    """A finite number of at least 0."""
    value = _float(text)
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"must be a number >= 0, got {text}")
    return value


def share(text: str) -> float:
    """A number in (0, 1]."""
    value = _float(text)
    if not 0 < value <= 1:
        raise ArgumentTypeError(f"must be in (0, 1], got {text}")
    return value


def norm(text: str) -> float:
    """A number above 0, or inf."""
    value = _float(text)
    if not value > 0:
        raise ArgumentTypeError(f"must be a number > 0, got {text}; inf clips nothing")
    return value


def densities(text: str) -> int | tuple[float, ...]:
    """A number of epochs, or a density for each of the first epochs."""
    if text.isdecimal():
        return int(text)
    return tuple(share(part) for part in text.split(","))


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def figure(text: str) -> Path:
    """A file to draw into."""
    file = Path(text)
    if file.suffix not in FIGURES:
        raise ArgumentTypeError(f"must end in one of {', '.join(FIGURES)}, got {text}")
    return file
